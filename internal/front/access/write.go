package access

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Write prints a line for each channel and operation, with a cell for each protocol.
func Write(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CHANNEL\tCLASS\tOPERATION\tPROTOCOL\tWHO")
	printed := ""
	for i, r := range rows {
		at := strings.Join([]string{r.Channel, r.Class.String(), r.Op.String()}, "\t")
		who, by := r.Text(), r.By.String()
		last := i+1 == len(rows) || rows[i+1].Op != r.Op || rows[i+1].Channel != r.Channel
		switch {
		case who != "":
		case !last || at == printed:
			continue // protocols by which no caller may are left out
		default:
			who, by = "-", "-"
		}
		if at == printed {
			at = "\t\t"
		} else {
			printed = at
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", at, by, who)
	}
	return w.Flush()
}
