// Renders the chart beside it with Helm's own engine, and reads what comes out, and the plain
// manifest, with Kubernetes' own types: an unknown or misspelt field, a value of another type or a
// required field that is missing is an error. Writes what was rendered to standard output.
//
//	go run . CHART MANIFEST [VALUES]
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	yamldocs "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) < 3 || len(os.Args) > 4 {
		fmt.Fprintln(os.Stderr, "usage: check CHART MANIFEST [VALUES]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(1)
	}
}

func run(folder, manifest string, values []string) error {
	rendered, err := render(folder, values)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(rendered))
	for name := range rendered {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Printf("---\n# %s\n%s", name, rendered[name])
		if err := check([]byte(rendered[name])); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	plain, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	if err := check(plain); err != nil {
		return fmt.Errorf("%s: %w", manifest, err)
	}
	return nil
}

func render(folder string, values []string) (map[string]string, error) {
	chart, err := loader.Load(folder)
	if err != nil {
		return nil, err
	}
	if err := chart.Validate(); err != nil {
		return nil, err
	}
	given := map[string]any{}
	for _, path := range values {
		if given, err = chartutil.ReadValuesFile(path); err != nil {
			return nil, err
		}
	}
	release := chartutil.ReleaseOptions{Name: "terrace", Namespace: "kube-system", IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, given, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Engine{Strict: true}.Render(chart, all)
}

// check reads every document of a text.
func check(text []byte) error {
	documents := yamldocs.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := one(document); err != nil {
			return fmt.Errorf("document %d: %w", number, err)
		}
	}
}

func one(document []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 ConfigMap":
		var object corev1.ConfigMap
		if err := strict(document, &object); err != nil {
			return err
		}
		return named(object.ObjectMeta)
	case "v1 Namespace":
		var object corev1.Namespace
		if err := strict(document, &object); err != nil {
			return err
		}
		return named(object.ObjectMeta)
	case "apps/v1 DaemonSet":
		var object appsv1.DaemonSet
		if err := strict(document, &object); err != nil {
			return err
		}
		return errors.Join(named(object.ObjectMeta), daemonSet(&object.Spec))
	default:
		if len(bytes.TrimSpace(document)) == 0 {
			return nil
		}
		return fmt.Errorf("got %s %s, expected a ConfigMap, a Namespace or a DaemonSet", kind.APIVersion, kind.Kind)
	}
}

// strict reads a document as the server does that has to refuse what it does not know.
func strict(document []byte, object any) error {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return err
	}
	faults, err := json.UnmarshalStrict(text, object)
	return errors.Join(append(faults, err)...)
}

func named(object metav1.ObjectMeta) error {
	for _, why := range validation.IsDNS1123Subdomain(object.Name) {
		return fmt.Errorf("metadata.name %q: %s", object.Name, why)
	}
	return nil
}

// daemonSet checks what the types cannot say and the server refuses: labels that its selector does
// not find, containers without a name or an image, mounts of volumes that there are not.
func daemonSet(spec *appsv1.DaemonSetSpec) error {
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err != nil {
		return err
	}
	if selector.Empty() || !selector.Matches(labels.Set(spec.Template.Labels)) {
		return fmt.Errorf("spec.selector does not match the template's labels")
	}
	if len(spec.Template.Spec.Containers) == 0 {
		return errors.New("no container")
	}
	volumes := map[string]bool{}
	for _, volume := range spec.Template.Spec.Volumes {
		volumes[volume.Name] = true
	}
	for _, container := range spec.Template.Spec.Containers {
		if container.Name == "" || container.Image == "" {
			return errors.New("a container without a name or an image")
		}
		ports := map[string]bool{}
		for _, port := range container.Ports {
			ports[port.Name] = true
		}
		for _, mount := range container.VolumeMounts {
			if !volumes[mount.Name] || mount.MountPath == "" {
				return fmt.Errorf("container %s mounts %q, which is no volume", container.Name, mount.Name)
			}
		}
		if probe := container.ReadinessProbe; probe != nil && probe.HTTPGet != nil {
			if port := probe.HTTPGet.Port; port.StrVal != "" && !ports[port.StrVal] {
				return fmt.Errorf("the readiness probe asks port %q, which there is not", port.StrVal)
			}
		}
	}
	return nil
}
