package alert

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// A body is what a webhook gets in the format "weir".
type body struct {
	// Version is 1. Fields may be added to it.
	Version int `json:"version"`
	// ID is the alert's own from when it fires until it is resolved; both deliveries have it.
	ID string `json:"id"`
	// Status is "firing" or "resolved".
	Status  string `json:"status"`
	Alert   string `json:"alert"`
	Level   string `json:"level"`
	Summary string `json:"summary"`
	Cause   string `json:"cause,omitempty"`
	// Value is what is compared in Expr, PromQL, at the time of the event.
	Value   float64    `json:"value"`
	Expr    string     `json:"expr"`
	Node    string     `json:"node"`
	Started time.Time  `json:"started"`
	Ended   *time.Time `json:"ended,omitempty"`
	Runbook string     `json:"runbook_url"`
}

// A group is the body that Alertmanager posts to its receivers, version 4, with one alert.
type group struct {
	Version           string            `json:"version"`
	GroupKey          string            `json:"groupKey"`
	TruncatedAlerts   int               `json:"truncatedAlerts"`
	Status            string            `json:"status"`
	Receiver          string            `json:"receiver"`
	GroupLabels       map[string]string `json:"groupLabels"`
	CommonLabels      map[string]string `json:"commonLabels"`
	CommonAnnotations map[string]string `json:"commonAnnotations"`
	ExternalURL       string            `json:"externalURL"`
	Alerts            []groupAlert      `json:"alerts"`
}

type groupAlert struct {
	Status       string            `json:"status"`
	Labels       map[string]string `json:"labels"`
	Annotations  map[string]string `json:"annotations"`
	StartsAt     time.Time         `json:"startsAt"`
	EndsAt       time.Time         `json:"endsAt"` // zero while it fires
	GeneratorURL string            `json:"generatorURL"`
	Fingerprint  string            `json:"fingerprint"`
}

// id identifies an alert of node from when it fires to when it is resolved.
func (e *event) id(node string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d", node, e.rule.Name, e.started.UnixNano()))
	return hex.EncodeToString(sum[:16])
}

// encode returns the event of node as a body in a webhook's format. runbooks is the
// address below which the alerts' pages are.
func (e *event) encode(w *Webhook, node, runbooks string) ([]byte, error) {
	page := runbooks + e.rule.Name + ".md"
	if w.Format == formatAlertmanager {
		return json.Marshal(e.group(w.Name, node, page))
	}
	b := body{
		Version: 1, ID: e.id(node), Status: e.status(), Alert: e.rule.Name, Level: string(e.rule.Level), Summary: e.rule.Summary, Cause: e.rule.Cause,
		Value: e.value, Expr: e.rule.Expr, Node: node, Started: e.started.UTC(), Runbook: page,
	}
	if end := e.ended.UTC(); !e.ended.IsZero() {
		b.Ended = &end
	}
	return json.Marshal(b)
}

func (e *event) group(receiver, node, page string) group {
	labels := map[string]string{"alertname": e.rule.Name, "severity": string(e.rule.Level), "instance": node, "job": "weir"}
	if e.rule.Cause != "" {
		labels["cause"] = e.rule.Cause
	}
	notes := map[string]string{
		"summary": node + ": " + e.rule.Summary, "description": strconv.FormatFloat(e.value, 'g', -1, 64) + " (" + e.rule.Expr + ")", "runbook_url": page,
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", node, e.rule.Name))
	return group{
		Version: "4", GroupKey: fmt.Sprintf(`{}:{alertname=%q, instance=%q}`, e.rule.Name, node), Status: e.status(), Receiver: receiver,
		GroupLabels: map[string]string{"alertname": e.rule.Name, "instance": node}, CommonLabels: labels, CommonAnnotations: notes,
		Alerts: []groupAlert{{
			Status: e.status(), Labels: labels, Annotations: notes, StartsAt: e.started.UTC(), EndsAt: e.ended.UTC(),
			Fingerprint: hex.EncodeToString(sum[:8]),
		}},
	}
}

// sign returns the value of Weir-Signature for a body sent at now.
func sign(secret, body []byte, now time.Time) string {
	t := strconv.FormatInt(now.Unix(), 10)
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(t + "."))
	h.Write(body)
	return "t=" + t + ",v1=" + hex.EncodeToString(h.Sum(nil))
}
