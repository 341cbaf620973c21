package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// repository is where links to files that are not pages lead.
const repository = "https://github.com/weir-gateway/weir"

// home is the page whose sections are the navigation.
const home = "docs/README.md"

// A site is the documentation, read and parsed. Paths are relative to the checkout and
// have slashes.
type site struct {
	root   string
	pages  map[string]*page
	assets map[string]bool // files of docs/ that pages show or link to
	nav    []*group
}

// A group is a section of the navigation: Learn, Do, Look up, Understand.
type group struct {
	Name  string
	Pages []*page
}

// load reads every page of docs/, and from there what they link to.
func load(root string) (*site, error) {
	s := &site{root: root, pages: map[string]*page{}, assets: map[string]bool{}}
	var queue []string
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(name, ".md") {
			rel, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			queue = append(queue, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		if s.pages[name] != nil {
			continue
		}
		p, err := parsePage(root, name)
		if err != nil {
			return nil, err
		}
		s.pages[name] = p
		for _, l := range p.links() {
			target, _, ok := within(name, l.destination())
			if ok && strings.HasSuffix(target, ".md") && s.pages[target] == nil {
				queue = append(queue, target)
			}
		}
	}
	if s.pages[home] == nil {
		return nil, fmt.Errorf("%s: there is no such page", home)
	}
	if err := s.rewriteLinks(); err != nil {
		return nil, err
	}
	return s, s.navigate()
}

// within is the file of the checkout that a link of the page leads to, and its fragment.
// It is false for links to other sites.
func within(page, destination string) (target, fragment string, ok bool) {
	if strings.Contains(destination, "://") || strings.HasPrefix(destination, "mailto:") {
		return "", "", false
	}
	target, fragment, _ = strings.Cut(destination, "#")
	if target == "" {
		return page, fragment, true
	}
	return path.Join(path.Dir(page), target), fragment, true
}

// rewriteLinks makes every link one of the site: to a page, to a file that is copied, or
// to the repository.
func (s *site) rewriteLinks() error {
	var errs []error
	for name, p := range s.pages {
		for _, l := range p.links() {
			target, fragment, ok := within(name, l.destination())
			if !ok {
				continue
			}
			to, err := s.resolve(p, target, fragment)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: link to %s: %w", name, l.destination(), err))
				continue
			}
			l.set(to)
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

func (s *site) resolve(from *page, target, fragment string) (string, error) {
	if p := s.pages[target]; p != nil {
		if fragment == "" {
			return from.to(p.url), nil
		}
		if !p.ids[fragment] {
			return "", fmt.Errorf("%s has no heading #%s", target, fragment)
		}
		return from.to(p.url) + "#" + fragment, nil
	}
	info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(target)))
	switch {
	case err != nil:
		return "", err
	case info.IsDir():
		return repository + "/tree/main/" + target, nil
	case strings.HasPrefix(target, "docs/"):
		s.assets[target] = true
		return from.to(address(target)), nil
	}
	return repository + "/blob/main/" + target, nil
}

// navigate makes the groups from the sections of the home page. A page of docs/ that is
// not linked there belongs to the README.md of its folder, which has to be.
func (s *site) navigate() error {
	h := s.pages[home]
	listed := map[*page]bool{h: true}
	byURL := map[string]*page{}
	for _, p := range s.pages {
		byURL[p.url] = p
	}
	for n := h.doc.FirstChild(); n != nil; n = n.NextSibling() {
		if head, ok := n.(*ast.Heading); ok && head.Level == 2 {
			s.nav = append(s.nav, &group{Name: plain(head, h.source)})
			continue
		}
		if len(s.nav) == 0 {
			continue
		}
		g := s.nav[len(s.nav)-1]
		for _, l := range linksOf(n) {
			url, _, _ := strings.Cut(l.destination(), "#")
			if p := byURL[url]; p != nil && !listed[p] {
				listed[p], p.group = true, g
				g.Pages = append(g.Pages, p)
			}
		}
	}
	var errs []error
	for name, p := range s.pages {
		if listed[p] || !strings.HasPrefix(name, "docs/") {
			continue
		}
		index := s.pages[path.Join(path.Dir(name), "README.md")]
		if index == nil || index == h || !listed[index] {
			errs = append(errs, fmt.Errorf("%s: %s does not link to it, nor is it in a folder with a page that does", name, home))
			continue
		}
		p.parent, p.group = index, index.group
		index.children = append(index.children, p)
	}
	for _, p := range s.pages {
		slices.SortFunc(p.children, func(a, b *page) int { return strings.Compare(a.name, b.name) })
	}
	return errors.Join(errs...)
}
