// Package router finds what a host, path and method lead to.
package router
