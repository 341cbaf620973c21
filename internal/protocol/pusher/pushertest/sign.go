// Package pushertest signs REST calls as the vendor's libraries do. Only tests import it.
package pushertest

import (
	"net/url"
	"strconv"
	"time"

	"github.com/weir-gateway/weir/internal/protocol/pusher/protocol"
)

// SignedQuery returns the query of a REST call with its signature.
func SignedQuery(r protocol.Request, key, secret string, now time.Time) string {
	params, _ := protocol.Params(r.Query)
	params = append(params, protocol.Param{Name: "auth_key", Value: key}, protocol.Param{Name: "auth_version", Value: "1.0"},
		protocol.Param{Name: "auth_timestamp", Value: strconv.FormatInt(now.Unix(), 10)})
	if len(r.Body) > 0 {
		params = append(params, protocol.Param{Name: "body_md5", Value: protocol.BodyMD5(r.Body)})
	}
	signature := protocol.Sign(secret, r.Method+"\n"+r.Path+"\n"+protocol.SortedQuery(params))
	v := url.Values{"auth_signature": {signature}}
	for _, p := range params {
		v.Set(p.Name, p.Value)
	}
	return v.Encode()
}
