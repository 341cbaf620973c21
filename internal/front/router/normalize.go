package router

// An Odd reports what a path holds that two readers may read in two ways, though
// its own spelling is settled. It is a set of bits.
type Odd uint32

const (
	// OddSlash: an encoded slash, "%2F". Some backends decode it before they look
	// for segments. It is matched as part of its segment.
	OddSlash Odd = 1 << (iota + 16)
	// OddSemicolon: ";" or "%3B". Some backends cut a segment there (RFC 3986
	// §3.3), so that "/admin;x" is /admin to them. It is matched as it is.
	OddSemicolon
)

// reserved are the bytes whose encoded and plain forms RFC 3986 §2.2 does not
// call equal, while nearly every backend reads them alike. The lower bits of an
// Odd say which of them a path has encoded.
const reserved = "!$&'()*+,=:@"

// A PathError reports why a path has no single reading.
type PathError struct {
	// Status to answer with: 400 or 414.
	Status int
	// Reason in words, safe to show.
	Reason string
}

// Error returns the reason.
func (e *PathError) Error() string { return e.Reason }

// Made once: a flood of bad paths allocates nothing.
var (
	errPathForm      = &PathError{400, "the path does not start with a slash"}
	errPathLength    = &PathError{414, "the path is too long"}
	errPathEscape    = &PathError{400, "bad percent-encoding in the path"}
	errPathByte      = &PathError{400, "byte not allowed in the path"}
	errPathControl   = &PathError{400, "encoded control byte in the path"}
	errPathBackslash = &PathError{400, "backslash in the path"}
	errPathOverlong  = &PathError{400, "overlong UTF-8 in the path"}
	errPathAbove     = &PathError{400, "dot segments lead above the root"}
	errPathDots      = &PathError{400, "dot segment hidden by an encoded slash or a semicolon"}
)

// maxPath bounds a path, so that offsets fit in Params.
const maxPath = 1<<16 - 1

// What becomes of a byte of a path.
const (
	plain   uint8 = iota // stays, and is decoded where it came encoded
	keep                 // stays as it came: reserved bytes, the slash
	encode               // is encoded: RFC 3986 allows it in no path
	refused              // makes the path bad, encoded or not
	opaque               // not ASCII: only encoded
	control              // never
)

var fate = fates()

func fates() (t [256]uint8) {
	for i := range t {
		t[i] = control
		if i >= 0x80 {
			t[i] = opaque
		}
	}
	mark := func(set string, f uint8) {
		for i := range len(set) {
			t[set[i]] = f
		}
	}
	mark("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~", plain)
	mark(reserved+"/;", keep)
	mark("\"<>^`{|}[] %?#", encode)
	mark("\\", refused)
	return t
}

var hexValue = hexValues()

func hexValues() (t [256]int8) {
	for i := range t {
		t[i] = -1
	}
	for i := range 10 {
		t['0'+i] = int8(i)
	}
	for i := range 6 {
		t['a'+i], t['A'+i] = int8(10+i), int8(10+i)
	}
	return t
}

// Normalize returns the one spelling in which a path, percent-encoded as a client
// sent it, is matched and forwarded (RFC 3986 §6.2.2):
//
//   - encoded unreserved bytes are decoded ("%61" is "a"), other encodings get
//     upper-case digits, bytes that a path may not hold are encoded;
//   - empty segments go ("//" is "/"), and "." and ".." are resolved, encoded or
//     not; what leads above the root is refused;
//   - refused as well: backslashes, control bytes, encoded or not, overlong UTF-8
//     ("%C0%AF"), and dot segments behind an encoded slash or before a semicolon.
//
// An encoded slash, a semicolon and encoded reserved bytes stay as they are and
// are reported in odd; the caller refuses what its route does not accept, and
// what [Router.Ambiguous] says.
//
// "%25" stays: a backend that decodes twice is on its own. "/A" and "/a" differ,
// and so do "/a" and "/a/".
//
// out is path itself when that is in this form already, else it is appended to dst.
// "*" (of OPTIONS) stays itself. Every error is a *PathError.
func Normalize(dst, path []byte) (out []byte, odd Odd, err error) {
	if len(path) == 0 || path[0] != '/' {
		if len(path) == 1 && path[0] == '*' {
			return path, 0, nil
		}
		return nil, 0, errPathForm
	}
	if len(path) > maxPath {
		return nil, 0, errPathLength
	}
	if isNormal(path) {
		return path, 0, nil
	}
	start := len(dst)
	dst, odd, e := spell(dst, path)
	if e != nil {
		return nil, 0, e
	}
	if len(dst)-start > maxPath {
		return nil, 0, errPathLength
	}
	n, e := resolve(dst[start:], odd)
	if e != nil {
		return nil, 0, e
	}
	return dst[start : start+n], odd, nil
}

// isNormal reports that path needs no work. It may say no to one that needs none.
func isNormal(path []byte) bool {
	for i, c := range path {
		switch fate[c] {
		case plain:
		case keep:
			if c == ';' || c == '/' && i+1 < len(path) && (path[i+1] == '/' || path[i+1] == '.') {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// spell writes path byte by byte in its normal spelling.
func spell(dst, path []byte) ([]byte, Odd, *PathError) {
	var odd Odd
	var lead byte // the encoded byte just before, 0 if none
	for i := 0; i < len(path); i++ {
		c := path[i]
		if c != '%' {
			lead = 0
			switch fate[c] {
			case plain, keep:
				dst = append(dst, c)
				if c == ';' {
					odd |= OddSemicolon
				}
			case encode:
				dst = appendEscape(dst, c)
			case refused:
				return nil, 0, errPathBackslash
			default:
				return nil, 0, errPathByte
			}
			continue
		}
		if i+2 >= len(path) || hexValue[path[i+1]] < 0 || hexValue[path[i+2]] < 0 {
			return nil, 0, errPathEscape
		}
		c = byte(hexValue[path[i+1]])<<4 | byte(hexValue[path[i+2]])
		i += 2
		switch fate[c] {
		case plain:
			dst = append(dst, c)
		case refused:
			return nil, 0, errPathBackslash
		case control:
			return nil, 0, errPathControl
		case opaque:
			if overlong(lead, c) {
				return nil, 0, errPathOverlong
			}
			dst = appendEscape(dst, c)
		default:
			odd |= oddOf(c)
			dst = appendEscape(dst, c)
		}
		lead = c
	}
	return dst, odd, nil
}

func oddOf(c byte) Odd {
	switch c {
	case '/':
		return OddSlash
	case ';':
		return OddSemicolon
	}
	for i := range len(reserved) {
		if reserved[i] == c {
			return 1 << i
		}
	}
	return 0
}

// overlong reports whether the bytes start a UTF-8 sequence longer than needed,
// which careless decoders turn into ASCII, such as C0 AF into a slash (RFC 3629 §10).
func overlong(lead, c byte) bool {
	switch lead {
	case 0xC0, 0xC1:
		return c < 0xC0
	case 0xE0:
		return c < 0xA0
	case 0xF0:
		return c < 0x90
	}
	return false
}

func appendEscape(dst []byte, c byte) []byte {
	const digits = "0123456789ABCDEF"
	return append(dst, '%', digits[c>>4], digits[c&15])
}

// resolve removes empty and dot segments in place and returns the new length.
func resolve(b []byte, odd Odd) (int, *PathError) {
	w := 0 // b[:w] is done and is "" or ends before a slash
	for i := 0; i < len(b); {
		// b[i] is a slash.
		end := i + 1
		for end < len(b) && b[end] != '/' {
			end++
		}
		seg, last := b[i+1:end], end == len(b)
		up := len(seg) == 2 && seg[0] == '.' && seg[1] == '.'
		switch {
		case len(seg) == 0 || len(seg) == 1 && seg[0] == '.' || up:
			if up {
				if w == 0 {
					return 0, errPathAbove
				}
				for w--; b[w] != '/'; w-- {
				}
			}
			if last {
				b[w] = '/'
				w++
			}
		default:
			if odd&(OddSlash|OddSemicolon) != 0 && hidesDots(seg) {
				return 0, errPathDots
			}
			w += copy(b[w:], b[i:end])
		}
		i = end
	}
	return w, nil
}

// hidesDots reports whether a part of seg between encoded slashes and semicolons
// is a dot segment.
func hidesDots(seg []byte) bool {
	start := 0
	for i := 0; ; i++ {
		width := 0
		switch {
		case i == len(seg):
		case seg[i] == ';':
			width = 1
		case seg[i] == '%' && (seg[i+1] == '2' && seg[i+2] == 'F' || seg[i+1] == '3' && seg[i+2] == 'B'):
			width = 3
		default:
			continue
		}
		if part := string(seg[start:i]); (width > 0 || start > 0) && (part == "." || part == "..") {
			return true
		}
		if width == 0 {
			return false
		}
		i += width - 1
		start = i + 1
	}
}
