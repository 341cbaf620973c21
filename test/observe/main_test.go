package observe

import (
	"os"
	"testing"

	"github.com/weir-gateway/weir/test/judge"
)

func TestMain(m *testing.M) { os.Exit(judge.Main(m)) }
