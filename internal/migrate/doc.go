// Package migrate translates the configuration files of other servers.
package migrate
