package demo

import "math"

const earthKilometres = 6371

const rad = math.Pi / 180

// distance returns the great-circle distance in kilometres (haversine).
func distance(a, b Airport) float64 { return earthKilometres * angle(a, b) }

// angle returns the central angle between a and b in radians.
func angle(a, b Airport) float64 {
	h := hav((b.Lat-a.Lat)*rad) + math.Cos(a.Lat*rad)*math.Cos(b.Lat*rad)*hav((b.Lon-a.Lon)*rad)
	return 2 * math.Asin(min(1, math.Sqrt(h)))
}

func hav(x float64) float64 { return (1 - math.Cos(x)) / 2 }

// along returns the point at fraction f, 0 to 1, of the great circle from a to b.
// The two must not be antipodes, and no route here comes near that.
func along(a, b Airport, f float64) (lat, lon float64) {
	d := angle(a, b)
	if d == 0 {
		return a.Lat, a.Lon
	}
	p, q := math.Sin((1-f)*d)/math.Sin(d), math.Sin(f*d)/math.Sin(d)
	x := p*math.Cos(a.Lat*rad)*math.Cos(a.Lon*rad) + q*math.Cos(b.Lat*rad)*math.Cos(b.Lon*rad)
	y := p*math.Cos(a.Lat*rad)*math.Sin(a.Lon*rad) + q*math.Cos(b.Lat*rad)*math.Sin(b.Lon*rad)
	z := p*math.Sin(a.Lat*rad) + q*math.Sin(b.Lat*rad)
	return math.Atan2(z, math.Hypot(x, y)) / rad, math.Atan2(y, x) / rad
}
