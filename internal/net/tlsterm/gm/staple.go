package gm

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"

	"github.com/emmansun/gmsm/smx509"
)

// The parts of an OCSP response (RFC 6960 §4.2.1) that are looked at.
type (
	ocspResponse struct {
		Status asn1.Enumerated
		Bytes  struct {
			Type     asn1.ObjectIdentifier
			Response []byte
		} `asn1:"explicit,tag:0,optional"`
	}
	ocspBasic struct {
		Data      ocspData
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
		Certs     []asn1.RawValue `asn1:"explicit,tag:0,optional"`
	}
	ocspData struct {
		Raw       asn1.RawContent
		Version   int `asn1:"explicit,tag:0,default:0,optional"`
		Responder asn1.RawValue
		Produced  time.Time `asn1:"generalized"`
		Responses []ocspSingle
	}
	ocspSingle struct {
		ID struct {
			Hash     pkix.AlgorithmIdentifier
			NameHash []byte
			KeyHash  []byte
			Serial   *big.Int
		}
		Good    asn1.Flag     `asn1:"tag:0,optional"`
		Revoked asn1.RawValue `asn1:"tag:1,optional"`
		Unknown asn1.Flag     `asn1:"tag:2,optional"`
		This    time.Time     `asn1:"generalized"`
		Next    time.Time     `asn1:"generalized,explicit,tag:0,optional"`
	}
)

// loadStaple reads an OCSP response for leaf that says good. Its signature is for the
// client to verify, which knows the authority.
func loadStaple(file string, leaf *smx509.Certificate, at time.Time) ([]byte, error) {
	der, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := checkStaple(der, leaf, at); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return der, nil
}

func checkStaple(der []byte, leaf *smx509.Certificate, at time.Time) error {
	var r ocspResponse
	if rest, err := asn1.Unmarshal(der, &r); err != nil || len(rest) > 0 {
		return errors.New("not an OCSP response in DER")
	}
	if r.Status != 0 {
		return fmt.Errorf("the OCSP responder answers with status %d", r.Status)
	}
	var basic ocspBasic
	if _, err := asn1.Unmarshal(r.Bytes.Response, &basic); err != nil {
		return fmt.Errorf("not a basic OCSP response: %w", err)
	}
	for _, s := range basic.Data.Responses {
		switch {
		case s.ID.Serial == nil || s.ID.Serial.Cmp(leaf.SerialNumber) != 0:
			continue
		case !bool(s.Good):
			return fmt.Errorf("certificate %s is not good according to its OCSP responder", leaf.Subject)
		case !s.Next.IsZero() && at.After(s.Next):
			return fmt.Errorf("the OCSP response ended on %s", s.Next.Format(time.RFC3339))
		}
		return nil
	}
	return fmt.Errorf("the OCSP response is not for certificate %s", leaf.Subject)
}
