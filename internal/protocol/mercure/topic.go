package mercure

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"github.com/weir-gateway/weir/internal/protocol/mercure/protocol"
	"github.com/weir-gateway/weir/internal/push/hub"
)

// A topic is a channel of the hub's namespace: "<namespace>:<topic>", with what channel
// names may not have, and "%", written as %XX. Two topics never share a channel. One
// that would be too long for a channel's name goes by its hash, and the messages there
// carry the topic itself as a tag.

// longPrefix starts the name of a channel whose topic is known by its hash. No escape
// reads so.
const longPrefix = "%~"

// channelOf returns the channel of a topic. long is the name of the tag that is to carry
// the topic, "" if the channel says it.
func channelOf(namespace, topic string) (channel, long string) {
	b := make([]byte, 0, len(namespace)+1+len(topic)+8)
	if namespace != hub.DefaultNamespace {
		b = append(append(b, namespace...), ':')
	}
	start := len(b)
	for i := 0; i < len(topic); {
		r, n := utf8.DecodeRuneInString(topic[i:])
		colon := r == ':' && namespace == hub.DefaultNamespace
		if r == '%' || colon || r <= ' ' || (r >= 0x7f && r < 0xa0) || r == utf8.RuneError {
			for _, c := range []byte(topic[i : i+n]) {
				b = protocol.AppendEscape(b, c)
			}
		} else {
			b = append(b, topic[i:i+n]...)
		}
		i += n
	}
	if len(b) <= hub.MaxChannelName {
		return string(b), ""
	}
	sum := sha256.Sum256([]byte(topic))
	long = longPrefix + base64.RawURLEncoding.EncodeToString(sum[:])
	return string(append(b[:start], long...)), long
}

// topicOf returns the topic of a channel. tags are those of a message on it; without
// them, or the one that channelOf named, a topic that goes by its hash is unknown and
// what is returned is not a topic.
func topicOf(namespace, channel string, tags map[string]string) string {
	name := channel
	if namespace != hub.DefaultNamespace {
		name = strings.TrimPrefix(channel, namespace+":")
	}
	if !strings.Contains(name, "%") {
		return name
	}
	if strings.HasPrefix(name, longPrefix) {
		if t, ok := tags[name]; ok {
			return t
		}
		return name
	}
	return protocol.UnescapeLax(name)
}
