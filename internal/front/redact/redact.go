// Package redact decides what is a secret and hides it. It has the one list of names for
// everything that Weir writes where people read: the access log, the log, traces, the
// admin API, `weir config effective`, evidence bundles and error messages.
//
// A secret is recognised by the name that it has (a query parameter, a header field, a
// configuration key, a log attribute) or by its form (user information in a URL, a JSON
// Web Token, the credentials of an Authorization field). Names are compared without
// regard to case and separators, and those of queries also percent-decoded: Access-Token,
// access_token, accessToken and %61ccess_token are one name.
package redact

// Mark replaces a secret.
const Mark = "[redacted]"

// suffixes end names of secrets, wherever they are: x-vault-token, db_password.
var suffixes = []string{
	"token", "tokens", "secret", "secrets", "password", "passwords", "passwd", "passphrase", "credential", "credentials", "authorization", "cookie",
	"apikey", "apikeys", "accesskey", "secretkey", "privatekey", "signingkey", "encryptionkey", "sharedkey", "masterkey", "hmackey", "authkey",
	"signature", "sig", "jwt", "assertion", "sessionid", "csrf", "xsrf", "samlresponse", "samlrequest", "dsn", "connectionstring", "connectionuri",
}

// names are complete names of secrets, wherever they are. Those that end like this are often
// something else.
var names = map[string]bool{
	"auth": true, "pwd": true, "dpop": true, "otp": true, "totp": true, "bearer": true, "sessid": true, "phpsessid": true, "jsessionid": true,
	"xamzsignature": true, "xamznoidcdata": true, "secwebsocketprotocol": true, "accesskeyid": true, "awsaccesskeyid": true,
}

// parameters are complete names of secrets in queries; elsewhere they are ordinary words.
var parameters = map[string]bool{"key": true, "code": true, "pass": true, "sid": true, "session": true, "pin": true, "hash": true, "hmac": true, "policy": true, "ticket": true}

// maxName bounds in bytes what is compared of a name: its end.
const maxName = 48

// Name reports whether what has this name is a secret: the name of a header field, a
// configuration key, a log attribute, or a query parameter.
func Name[S ~string | ~[]byte](name S) bool {
	var buf [maxName]byte
	n := plain(&buf, name)
	return known(n, false)
}

// Parameter is Name for query parameters, of which more are secrets. name is decoded.
func Parameter[S ~string | ~[]byte](name S) bool {
	var buf [maxName]byte
	n := plain(&buf, name)
	return known(n, true)
}

// plain writes the end of name in lower case and without separators. Digits, brackets and
// other bytes behind the last letter do not count: token2, token[].
func plain[S ~string | ~[]byte](buf *[maxName]byte, name S) []byte {
	end := len(name)
	for end > 0 && !letter(name[end-1]) {
		end--
	}
	at := len(buf)
	for i := end - 1; i >= 0 && at > 0; i-- {
		c := name[i]
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case letter(c), '0' <= c && c <= '9':
		default:
			continue
		}
		at--
		buf[at] = c
	}
	return buf[at:]
}

func letter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func known(plain []byte, parameter bool) bool {
	if names[string(plain)] || parameter && parameters[string(plain)] {
		return true
	}
	for _, s := range suffixes {
		if n := len(plain) - len(s); n >= 0 && string(plain[n:]) == s {
			return true
		}
	}
	return false
}

// JWT returns where the first JSON Web Token in s starts and ends, or 0, 0.
func JWT[S ~string | ~[]byte](s S) (start, end int) {
	for i := 0; i+2 < len(s); i++ {
		if s[i] != 'e' || s[i+1] != 'y' || s[i+2] != 'J' || i > 0 && base64url(s[i-1]) {
			continue
		}
		j, dots := i, 0
		for j < len(s) && (base64url(s[j]) || s[j] == '.') {
			if s[j] == '.' {
				dots++
			}
			j++
		}
		if dots >= 2 && j-i >= 20 {
			return i, j
		}
	}
	return 0, 0
}

func base64url(c byte) bool { return letter(c) || '0' <= c && c <= '9' || c == '-' || c == '_' }
