package upstream

// The values of HealthConfig.Check.
const (
	CheckNone = "none"
	CheckHTTP = "http"
	CheckTCP  = "tcp"
)
