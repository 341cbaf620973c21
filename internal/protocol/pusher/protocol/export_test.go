package protocol

// Unambiguous is unambiguous, for the tests outside.
var Unambiguous = unambiguous
