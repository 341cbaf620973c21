// Command gateway-api configures the Weir beside it from the objects of the Gateway API. See
// docs/howto/gateway-api.md.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weir-gateway/weir/integrations/gateway-api/controller"
	"github.com/weir-gateway/weir/integrations/gateway-api/translate"
	"github.com/weir-gateway/weir/internal/net/tlsterm"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "gateway-api: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	var (
		name    = flag.String("controller", "weir-gateway.io/weir", "the controllerName of the GatewayClasses that are served")
		port    = flag.Int("port", 80, "the port of the listeners that are served")
		https   = flag.Bool("https", false, "this port speaks TLS")
		service = flag.String("service", "", "namespace/name of the Service before Weir, whose addresses the Gateways have")
		lease   = flag.String("lease", "", "namespace/name of the Lease by which the pods elect the one that writes status")
		base    = flag.String("base", "/etc/weir/weir.yaml", "the file with the rest of Weir's configuration")
		file    = flag.String("file", "/run/weir/weir.yaml", "the configuration that is written for Weir")
		dir     = flag.String("dir", "/run/weir/files", "the folder for certificates and keys, for nothing else")
		admin   = flag.String("admin", "http://127.0.0.1:8001", "Weir's admin listener; WEIR_ADMIN_TOKEN is its token")
		probe   = flag.String("probe", ":8002", "address of /readyz, which answers 200 once a configuration is written")
	)
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if *port < 1 || *port > 65535 {
		return fmt.Errorf("-port %d: write 1 to 65535", *port)
	}
	c := controller.Config{
		Options: translate.Options{Controller: gw.GatewayController(*name), Port: gw.PortNumber(*port), HTTPS: *https, Dir: *dir},
		Target:  &controller.Target{Base: *base, File: *file, Dir: *dir, Admin: strings.TrimSuffix(*admin, "/"), Token: os.Getenv("WEIR_ADMIN_TOKEN")},
		Log:     log,
	}
	var err error
	if c.Service, err = named("-service", *service); err != nil {
		return err
	}
	if *lease != "" {
		l, err := named("-lease", *lease)
		if err != nil {
			return err
		}
		c.LeaseNamespace, c.LeaseName = l.Namespace, l.Name
	}
	if err := os.MkdirAll(*dir, 0o700); err != nil {
		return err
	}
	if *https {
		if c.Target.Fallback, err = fallback(*dir); err != nil {
			return err
		}
	}
	kube, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	server := &http.Server{Addr: *probe, ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(*file); err != nil {
			http.Error(w, "no configuration is written yet", http.StatusServiceUnavailable)
		}
	})}
	failed := make(chan error, 2)
	go func() { failed <- server.ListenAndServe() }()
	go func() { failed <- controller.Run(ctx, kube, c) }()
	err = <-failed
	stop()
	_ = server.Close()
	return errors.Join(err, ignoreClosed(<-failed))
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func named(flag, value string) (types.NamespacedName, error) {
	namespace, name, ok := strings.Cut(value, "/")
	if !ok || namespace == "" || name == "" {
		return types.NamespacedName{}, fmt.Errorf("%s %q: write namespace/name", flag, value)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// fallback makes the certificate that is shown where no Gateway has one: no client trusts it,
// and the port speaks TLS from the start.
func fallback(dir string) (tlsterm.Certificate, error) {
	c := tlsterm.Certificate{CertFile: filepath.Join(dir, "fallback.crt"), KeyFile: filepath.Join(dir, "fallback.key")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "no certificate of a Gateway"}, NotBefore: time.Now(), NotAfter: time.Now().AddDate(10, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return c, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return c, err
	}
	if err := os.WriteFile(c.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600); err != nil {
		return c, err
	}
	return c, os.WriteFile(c.CertFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
}
