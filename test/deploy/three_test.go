//go:build namespaces

package deploy

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

const (
	composeKey = "0123456789abcdef"
	user       = "65532" // of deploy/docker/Dockerfile
)

// A composition runs the services of a compose file as an engine would: each in network, mount and process
// namespaces of its own, with its command, environment and volumes, on the read-only root of its image.
// Published ports are the one thing that it leaves out: the test is on the network of the services.
type composition struct {
	dir        string            // of volumes and logs
	hosts      string            // what name resolution is made of
	roots      map[string]string // of the images
	containers map[string]*container
}

type container struct {
	service types.ServiceConfig
	addr    string
	cmd     *exec.Cmd // nil while it does not run
}

// setting is a variable of packaging/compose.sh.
func setting(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: run packaging/compose.sh", name)
	}
	return v
}

// run runs a command that has to succeed.
func run(t *testing.T, name string, arg ...string) {
	t.Helper()
	if out, err := exec.Command(name, arg...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arg, " "), err, out)
	}
}

func newComposition(t *testing.T, file string) *composition {
	t.Helper()
	p, err := loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir: filepath.Dir(file), Environment: types.Mapping{"WEIR_API_KEY": composeKey}, ConfigFiles: []types.ConfigFile{{Filename: file}},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &composition{dir: t.TempDir(), containers: map[string]*container{}, roots: map[string]string{"weir": setting(t, "WEIR_ROOT"), "nats": setting(t, "NATS_ROOT")}}
	for _, dir := range []string{c.dir, filepath.Dir(c.dir)} { // the services are another user
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "ip", "link", "add", "services", "type", "bridge")
	run(t, "ip", "address", "add", "10.77.0.1/24", "dev", "services")
	run(t, "ip", "link", "set", "services", "up")
	hosts := "127.0.0.1 localhost\n"
	for i, name := range p.ServiceNames() {
		s := &container{service: p.Services[name], addr: fmt.Sprintf("10.77.0.%d", 10+i)}
		c.containers[name] = s
		hosts += s.addr + " " + name + "\n"
		run(t, "ip", "netns", "add", name)
		run(t, "ip", "link", "add", "port"+strconv.Itoa(i), "type", "veth", "peer", "name", "eth0", "netns", name)
		run(t, "ip", "link", "set", "port"+strconv.Itoa(i), "master", "services", "up")
		run(t, "ip", "-n", name, "address", "add", s.addr+"/24", "dev", "eth0")
		run(t, "ip", "-n", name, "link", "set", "eth0", "up")
		run(t, "ip", "-n", name, "link", "set", "lo", "up")
	}
	c.hosts = filepath.Join(c.dir, "hosts")
	if err := os.WriteFile(c.hosts, []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for name := range c.containers {
			c.kill(name)
			if log, _ := os.ReadFile(c.log(name)); t.Failed() {
				t.Logf("%s: %s", name, log[max(0, len(log)-1500):])
			}
		}
	})
	return c
}

func (c *composition) log(name string) string { return filepath.Join(c.dir, name+".log") }

func (c *composition) url(name string) string { return "http://" + c.containers[name].addr + ":8000" }

// start starts a service; its volumes are those that it had before.
func (c *composition) start(t *testing.T, name string) {
	t.Helper()
	s := c.containers[name]
	image, _, _ := strings.Cut(s.service.Image, ":")
	argv := []string{
		"--net=/run/netns/" + name, "--", "setpriv", "--reuid", user, "--regid", user, "--clear-groups",
		"bwrap", "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL", "--die-with-parent", "--clearenv",
		"--ro-bind", c.roots[image], "/", "--ro-bind", c.hosts, "/etc/hosts", "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev",
	}
	env, command := map[string]string{}, []string{"/nats-server"}
	if image == "weir" {
		docker := dockerfile(filepath.Join(deployed, "docker/Dockerfile"))
		argv = append(argv, "--chdir", docker("WORKDIR")[0])
		key, value, _ := strings.Cut(docker("ENV")[0], "=")
		env[key] = value
		s.service.Volumes = []types.ServiceVolumeConfig{{Source: "data-" + name, Target: docker("VOLUME")[0]}} // the image's: the file names none
		command = docker("ENTRYPOINT")
		if s.service.Command == nil {
			s.service.Command = docker("CMD")
		}
	}
	for _, v := range s.service.Volumes {
		source := filepath.Join(c.dir, v.Source)
		if err := os.MkdirAll(source, 0o700); err != nil {
			t.Fatal(err)
		}
		run(t, "chown", user+":"+user, source)
		argv = append(argv, "--bind", source, v.Target)
	}
	for key, value := range s.service.Environment {
		env[key] = *value
	}
	for key, value := range env {
		argv = append(argv, "--setenv", key, value)
	}
	log, err := os.OpenFile(c.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	argv = append(argv, "--")
	s.cmd = exec.Command("nsenter", append(append(argv, command...), s.service.Command...)...)
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.SysProcAttr = log, log, &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// dockerfile returns a function that has the words of the last instruction of a name.
func dockerfile(name string) func(string) []string {
	text, _ := os.ReadFile(name) // an empty one has no instruction, which the caller's index shows
	return func(instruction string) []string {
		all := regexp.MustCompile(`(?m)^`+instruction+` (.*)$`).FindAllStringSubmatch(string(text), -1)
		return strings.Fields(strings.NewReplacer("[", "", "]", "", `"`, "", ",", " ").Replace(all[len(all)-1][1]))
	}
}

// kill ends a service without a last word: the first process of its namespace, and so all of them.
func (c *composition) kill(name string) {
	s := c.containers[name]
	if s.cmd == nil {
		return
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	_ = s.cmd.Wait() // killed
	s.cmd = nil
}

// within polls until f is true.
func within(t *testing.T, d time.Duration, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !f(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

func (c *composition) ready(t *testing.T, name string) {
	t.Helper()
	within(t, time.Minute, name+" is ready", func() bool {
		res, err := http.Get(c.url(name) + "/readyz")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

func numbers(from, to int) string {
	var b strings.Builder
	for n := from; n <= to; n++ {
		fmt.Fprintln(&b, n)
	}
	return b.String()
}

// publish sends the numbers to a node until they are acknowledged; a repeated one is stored once.
func (c *composition) publish(t *testing.T, name string, from, to int) {
	t.Helper()
	within(t, 2*time.Minute, fmt.Sprintf("%s takes %d to %d", name, from, to), func() bool {
		cmd := exec.Command(setting(t, "WEIR"), "pub", "news", "-", "--text", "--idempotency-key", "n"+strconv.Itoa(from), "--api-key", composeKey, "--url", c.url(name))
		cmd.Stdin = strings.NewReader(numbers(from, to))
		return cmd.Run() == nil
	})
}

var datum = regexp.MustCompile(`"data":"(\d+)"`)

// hold checks that each of the nodes has the numbers from 1 to n, once and in order.
func (c *composition) hold(t *testing.T, n int, names ...string) {
	t.Helper()
	for _, name := range names {
		out, err := exec.Command(setting(t, "WEIR"), "sub", "news", "--since", "0", "--count", strconv.Itoa(n), "--for", "60s", "--quiet", "--json", "--url", c.url(name)).Output()
		var got bytes.Buffer
		for _, m := range datum.FindAllSubmatch(out, -1) {
			fmt.Fprintf(&got, "%s\n", m[1])
		}
		if err != nil || got.String() != numbers(1, n) {
			t.Fatalf("%s does not have 1 to %d: %v\n%s", name, n, err, out)
		}
	}
}

// TestThreeNodesServeLoseOneAndHeal plays what happens to deploy/compose/three.yaml: a node and a NATS server are
// killed while messages are published, come back, and have all of them.
func TestThreeNodesServeLoseOneAndHeal(t *testing.T) {
	c := newComposition(t, filepath.Join(deployed, "compose/three.yaml"))
	nodes := []string{"weir1", "weir2", "weir3"}
	for name := range c.containers {
		c.start(t, name)
	}
	for _, name := range nodes {
		c.ready(t, name)
	}
	c.publish(t, "weir1", 1, 50)
	c.hold(t, 50, "weir3")

	c.kill("weir2")
	c.publish(t, "weir3", 51, 100)
	c.hold(t, 100, "weir1")
	c.start(t, "weir2")
	c.ready(t, "weir2")
	c.publish(t, "weir2", 101, 120)
	c.hold(t, 120, nodes...)
	t.Log("a node was killed and is back")

	c.kill("nats1")
	c.publish(t, "weir1", 121, 170)
	c.hold(t, 170, nodes...)
	c.start(t, "nats1")
	t.Log("a NATS server was killed")

	// Two of three are needed: what is acknowledged now is on the one that came back.
	c.kill("nats2")
	c.publish(t, "weir3", 171, 190)
	c.hold(t, 190, nodes...)
	t.Log("it is back, and another one was killed")
}
