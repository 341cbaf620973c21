package loadgen

// minPayload is the least size of a payload: what a stamp takes.
const minPayload = 64
