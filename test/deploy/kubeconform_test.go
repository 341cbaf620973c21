package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yannh/kubeconform/pkg/validator"
	"sigs.k8s.io/yaml"
)

// definitions are modules with CustomResourceDefinitions of the operators that deploy/ has objects for,
// and where in them these are.
var definitions = map[string]string{
	"sigs.k8s.io/gateway-api@v1.6.3":                             "config/crd/standard/*.yaml",
	"github.com/external-secrets/external-secrets@v1.3.2":        "config/crds/bases/external-secrets.io_externalsecrets.yaml",
	"github.com/prometheus-operator/prometheus-operator@v0.85.0": "example/prometheus-operator-crd/*_servicemonitors.yaml",
	"github.com/argoproj/argo-rollouts@v1.8.3":                   "manifests/crds/*.yaml",
}

// module is the folder of a module in Go's cache. One without a version has that of the module in dir.
func module(t *testing.T, dir, name string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", name)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	var m struct{ Dir, Version string }
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m.Dir
}

// schemas writes JSON schemas as kubeconform reads them, a file for each kind, and returns where they are:
// of Kubernetes's OpenAPI, in the version that test/kubernetes runs, and of definitions.
func schemas(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(module(t, "../kubernetes", "k8s.io/kubernetes"), "api/openapi-spec/swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var api struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(text, &api); err != nil {
		t.Fatal(err)
	}
	write := func(name string, schema any) {
		t.Helper()
		b, err := json.Marshal(schema)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("definitions.json", map[string]any{"definitions": strict(anyMap(api.Definitions))})
	for name, d := range api.Definitions {
		kinds, _ := d["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 { // the others are parts of every kind, such as DeleteOptions
			continue
		}
		k := kinds[0].(map[string]any)
		write(schemaName(k["kind"], k["group"], k["version"]), map[string]any{"$ref": "definitions.json#/definitions/" + name})
	}
	for name, pattern := range definitions {
		files, err := filepath.Glob(filepath.Join(module(t, ".", name), pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no %s: %v", name, pattern, err)
		}
		for _, file := range files {
			customKinds(t, file, write)
		}
	}
	return dir
}

// customKinds writes the schema of each version of a CustomResourceDefinition.
func customKinds(t *testing.T, file string, write func(string, any)) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Kind string
		Spec struct {
			Group    string
			Names    struct{ Kind string }
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if crd.Kind != "CustomResourceDefinition" {
		return
	}
	for _, v := range crd.Spec.Versions {
		write(schemaName(crd.Spec.Names.Kind, crd.Spec.Group, v.Name), strict(v.Schema.OpenAPIV3Schema))
	}
}

// schemaName is the file that kubeconform's templates name {{.ResourceKind}}{{.KindSuffix}}.json.
func schemaName(kind, group, version any) string {
	name := fmt.Sprintf("%s-%s.json", kind, version)
	if first, _, _ := strings.Cut(group.(string), "."); first != "" {
		name = fmt.Sprintf("%s-%s-%s.json", kind, first, version)
	}
	return strings.ToLower(name)
}

func anyMap[V any](m map[string]V) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

// strict makes a JSON schema of an OpenAPI schema: fields that are not named are errors, and what is a number
// or a string in YAML may be either.
func strict(schema any) any {
	switch s := schema.(type) {
	case map[string]any:
		out := make(map[string]any, len(s))
		for k, v := range s {
			out[k] = strict(v)
		}
		description, _ := s["description"].(string)
		if s["format"] == "int-or-string" || s["x-kubernetes-int-or-string"] == true || strings.HasPrefix(description, "Quantity is a fixed-point") {
			return map[string]any{"type": []any{"string", "number"}}
		}
		_, properties := s["properties"].(map[string]any)
		_, open := s["additionalProperties"]
		if properties && s["type"] == "object" && !open && s["x-kubernetes-preserve-unknown-fields"] != true && s["x-kubernetes-embedded-resource"] != true {
			out["additionalProperties"] = false
		}
		return out
	case []any:
		out := make([]any, len(s))
		for i, v := range s {
			out[i] = strict(v)
		}
		return out
	}
	return schema
}

// manifests are all objects that deploy/ and its documentation have, by where they are from.
func manifests(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"testdata/*.yaml", deployed + "kubernetes/*.yaml", argocd + "rollout.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all[file] = string(text)
		}
	}
	c := load(t)
	for name, text := range documented(t) {
		if strings.Contains(text, "apiVersion:") {
			all[name] = text
			continue
		}
		var values map[string]any
		if err := yaml.Unmarshal([]byte(text), &values); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if values["existingSecret"] == nil { // a part of the values
			values["existingSecret"] = "weir"
		}
		rendered, err := render(c, values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		all[name] = rendered
	}
	return all
}

var namedBlock = regexp.MustCompile("(?ms)^```yaml\n# (\\S+)\n(.*?)^```$")

// documented are the values of the chart and the objects that pages show, by page and file.
func documented(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, page := range []string{"kubernetes", "gateway-api"} {
		text, err := os.ReadFile("../../docs/howto/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range namedBlock.FindAllStringSubmatch(string(text), -1) {
			if b[1] != "weir.yaml" { // checked by Weir, in test/upstreams
				all[page+".md "+b[1]] = b[2]
			}
		}
	}
	if len(all) < 3 {
		t.Fatalf("%d blocks of values and objects", len(all))
	}
	return all
}

// TestKubeconformAcceptsEveryObject: all kinds have a schema, and each object is valid by it, strictly.
func TestKubeconformAcceptsEveryObject(t *testing.T) {
	dir := schemas(t)
	v, err := validator.New([]string{dir + "/{{ .ResourceKind }}{{ .KindSuffix }}.json"}, validator.Opts{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	validate := func(name, text string) (valid int, wrong []string) {
		for _, r := range v.Validate(name, io.NopCloser(strings.NewReader(text))) {
			switch r.Status {
			case validator.Valid:
				valid++
			case validator.Empty:
			default:
				wrong = append(wrong, fmt.Sprintf("%v\n%s", r.Err, bytes.TrimSpace(r.Resource.Bytes)))
			}
		}
		return valid, wrong
	}
	objects := 0
	for name, text := range manifests(t) {
		valid, wrong := validate(name, text)
		for _, w := range wrong {
			t.Errorf("%s: %s", name, w)
		}
		if valid == 0 {
			t.Errorf("%s has no valid object", name)
		}
		objects += valid
	}
	t.Logf("%d objects are valid", objects)

	// It finds what is wrong: an unknown field, a wrong type, a field that is missing, an unknown kind.
	for _, text := range []string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {port: 80}",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: many, selector: {}, template: {}}",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {template: {}}",
		"apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: a}\nspec: {gatewayClassName: weir}",
		"apiVersion: v1\nkind: Servise\nmetadata: {name: a}",
	} {
		if valid, wrong := validate("wrong", text); valid != 0 || len(wrong) != 1 || slices.Contains(wrong, "") {
			t.Errorf("accepted: %s", text)
		}
	}
}
