package accept

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// chainFile holds the chain: one line for each file of the directory, in the order in which
// they were written, "<link>  <sha256 of the file>  <name>". A link is the SHA-256 of the link
// before and the rest of its line, so that the last one identifies all files.
const chainFile = "chain.sha256"

// link is the next of a chain.
func link(before, sum, name string) string {
	h := sha256.Sum256([]byte(before + "\n" + sum + "  " + name + "\n"))
	return hex.EncodeToString(h[:])
}

func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// A chain is that of a directory. One goroutine at a time.
type chain struct {
	dir  string
	head string // empty: nothing yet
}

// add writes a new file, whose name is relative to the directory, and links it.
func (c *chain) add(name string, content []byte) error {
	file := filepath.Join(c.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	h := sha256.Sum256(content)
	sum := hex.EncodeToString(h[:])
	head := link(c.head, sum, name)
	f, err = os.OpenFile(filepath.Join(c.dir, chainFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s  %s  %s\n", head, sum, name)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	c.head = head
	return nil
}

// checkChain reads the chain of dir and holds every file against it. It returns the names in
// order and the head. The error names each file that is not as it was written.
func checkChain(dir string) (names []string, head string, err error) {
	f, err := os.Open(filepath.Join(dir, chainFile))
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	var wrong []error
	known := map[string]bool{chainFile: true}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		part := strings.SplitN(lines.Text(), "  ", 3)
		if len(part) != 3 || !filepath.IsLocal(filepath.FromSlash(part[2])) {
			return nil, "", fmt.Errorf("%s: line %d is none of a chain", chainFile, n)
		}
		if head = link(head, part[1], part[2]); head != part[0] {
			return nil, "", fmt.Errorf("%s: the chain breaks at line %d, %s", chainFile, n, part[2])
		}
		switch sum, err := sumOf(filepath.Join(dir, filepath.FromSlash(part[2]))); {
		case err != nil:
			wrong = append(wrong, fmt.Errorf("%s: %w", part[2], err))
		case sum != part[1]:
			wrong = append(wrong, fmt.Errorf("%s: it was changed after it was written", part[2]))
		}
		known[part[2]] = true
		names = append(names, part[2])
	}
	if err := lines.Err(); err != nil {
		return nil, "", err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if name = filepath.ToSlash(name); err == nil && !known[name] {
			wrong = append(wrong, fmt.Errorf("%s: it is not in the chain", name))
		}
		return err
	})
	return names, head, errors.Join(append(wrong, err)...)
}
