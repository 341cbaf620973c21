// Package release checks what a release consists of besides the program: that both
// descriptions of the packages agree, that links of the documentation lead somewhere, that
// no secret is in the tree, and that the deployments of deploy/ work. What takes minutes is
// in packaging/check.sh.
package release
