package tune

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// Ethtool reads network cards by the kernel's "ethtool" family of generic netlink
// (Documentation/networking/ethtool-netlink.rst). The zero value works.
type Ethtool struct{}

var _ EthtoolReader = Ethtool{}

// Messages and attributes of linux/ethtool_netlink.h.
const (
	msgFeaturesGet = 11
	msgRingsGet    = 15
	msgChannelsGet = 17
	msgCoalesceGet = 19

	attrHeader     = 1 // of every message
	attrDeviceName = 2 // in a header

	ringsMaxRX, ringsRX                  = 2, 6
	channelsMaxRX, channelsMaxCombined   = 2, 5
	channelsRX, channelsCombined         = 6, 9
	coalesceRXMicros, coalesceAdaptiveRX = 2, 11
	featuresHardware, featuresActive     = 2, 4
	bitsetNoMask, bitsetBits, bitsetBit  = 1, 3, 1
	bitsetBitName, bitsetBitValue        = 2, 3
)

// Channels implements EthtoolReader.
func (e Ethtool) Channels(dev string) (c Channels, err error) {
	err = e.get(msgChannelsGet, dev, numbersOf(map[uint16]*int{
		channelsRX: &c.RX, channelsCombined: &c.Combined, channelsMaxRX: &c.MaxRX, channelsMaxCombined: &c.MaxCombined,
	}))
	return c, err
}

// Rings implements EthtoolReader.
func (e Ethtool) Rings(dev string) (r Rings, err error) {
	err = e.get(msgRingsGet, dev, numbersOf(map[uint16]*int{ringsRX: &r.RX, ringsMaxRX: &r.MaxRX}))
	return r, err
}

// Coalesce implements EthtoolReader.
func (e Ethtool) Coalesce(dev string) (c Coalesce, err error) {
	seen := false
	err = e.get(msgCoalesceGet, dev, func(ad *netlink.AttributeDecoder) error {
		switch ad.Type() {
		case coalesceRXMicros:
			c.RXMicros, seen = int(ad.Uint32()), true
		case coalesceAdaptiveRX:
			c.AdaptiveRX, seen = ad.Uint8() != 0, true
		}
		return nil
	})
	if err == nil && !seen {
		err = fmt.Errorf("%s: the driver has no receive coalescing: %w", dev, ErrUnsupported)
	}
	return c, err
}

// Features implements EthtoolReader.
func (e Ethtool) Features(dev string) (map[string]Feature, error) {
	all := map[string]Feature{}
	err := e.get(msgFeaturesGet, dev, func(ad *netlink.AttributeDecoder) error {
		switch ad.Type() {
		case featuresHardware:
			ad.Nested(bits(func(name string) { f := all[name]; f.Possible = true; all[name] = f }))
		case featuresActive:
			ad.Nested(bits(func(name string) { f := all[name]; f.Active = true; all[name] = f }))
		}
		return nil
	})
	return all, err
}

// get requests one message about a device and hands its attributes to each.
func (Ethtool) get(command uint8, dev string, each func(*netlink.AttributeDecoder) error) error {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return ethtoolError(dev, err)
	}
	defer func() { _ = conn.Close() }() // everything has been read by then
	family, err := conn.GetFamily("ethtool")
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("this kernel has no ethtool netlink (5.6 or later): %w", ErrUnsupported)
	}
	if err != nil {
		return ethtoolError(dev, err)
	}
	ae := netlink.NewAttributeEncoder()
	ae.Nested(attrHeader, func(h *netlink.AttributeEncoder) error {
		h.String(attrDeviceName, dev)
		return nil
	})
	data, err := ae.Encode()
	if err != nil {
		return err
	}
	replies, err := conn.Execute(genetlink.Message{Header: genetlink.Header{Command: command, Version: family.Version}, Data: data}, family.ID, netlink.Request)
	if err != nil {
		return ethtoolError(dev, err)
	}
	for _, r := range replies {
		ad, err := netlink.NewAttributeDecoder(r.Data)
		if err != nil {
			return ethtoolError(dev, err)
		}
		for ad.Next() {
			if err := each(ad); err != nil {
				return ethtoolError(dev, err)
			}
		}
		if err := ad.Err(); err != nil {
			return ethtoolError(dev, err)
		}
	}
	return nil
}

func ethtoolError(dev string, err error) error {
	if errors.Is(err, syscall.EOPNOTSUPP) {
		return fmt.Errorf("%s: the driver does not have it: %w", dev, ErrUnsupported)
	}
	return fmt.Errorf("ethtool netlink, %s: %w", dev, err)
}

func numbersOf(fields map[uint16]*int) func(*netlink.AttributeDecoder) error {
	return func(ad *netlink.AttributeDecoder) error {
		if p := fields[ad.Type()]; p != nil {
			*p = int(ad.Uint32())
		}
		return nil
	}
}

// bits calls set with the name of each bit that is set: in a bitset without mask every
// bit that is listed, in one with a mask those that have a value.
func bits(set func(name string)) func(*netlink.AttributeDecoder) error {
	return func(ad *netlink.AttributeDecoder) error {
		noMask := false
		for ad.Next() {
			switch ad.Type() {
			case bitsetNoMask:
				noMask = true
			case bitsetBits:
				ad.Nested(func(list *netlink.AttributeDecoder) error {
					for list.Next() {
						if list.Type() == bitsetBit {
							list.Nested(func(bit *netlink.AttributeDecoder) error {
								name, value := "", noMask
								for bit.Next() {
									switch bit.Type() {
									case bitsetBitName:
										name = bit.String()
									case bitsetBitValue:
										value = true
									}
								}
								if value {
									set(name)
								}
								return nil
							})
						}
					}
					return nil
				})
			}
		}
		return nil
	}
}
