package manifests

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	metadata "github.com/kubernetes-csi/external-snapshot-metadata/client/apis/snapshotmetadataservice/v1beta1"
	groupsnapshot "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshot "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// Object is one document of a manifest.
type Object struct {
	// ID is "Kind namespace/name", without a namespace where there is none.
	ID string
	// Fields are as they are written.
	Fields map[string]any
	// Typed is the same as Kubernetes understands it.
	Typed runtime.Object
}

// Decode reads a manifest. A field that the object's type does not have, or has
// twice, is an error, and so are a field of another type, a missing one that the
// type requires, and an object that is there twice.
func Decode(manifest string) (map[string]Object, error) {
	decoder, err := strictDecoder()
	if err != nil {
		return nil, err
	}

	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifest)))
	objects := map[string]Object{}

	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}

		if err != nil {
			return nil, fmt.Errorf("read a manifest: %w", err)
		}

		object, err := decode(decoder, document)
		if err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, document)
		}

		if object.ID == "" {
			continue // nothing but comments
		}

		if _, twice := objects[object.ID]; twice {
			return nil, fmt.Errorf("%w: %s", errTwice, object.ID)
		}

		objects[object.ID] = object
	}
}

var (
	errTwice   = errors.New("it is there twice")
	errMissing = errors.New("fields are missing that the type requires")
)

func decode(decoder runtime.Decoder, document []byte) (Object, error) {
	var fields map[string]any
	if err := yaml.UnmarshalStrict(document, &fields); err != nil || len(fields) == 0 {
		return Object{}, err
	}

	typed, _, err := decoder.Decode(document, nil, nil)
	if err != nil {
		return Object{}, err
	}

	if lacks := missing("", reflect.TypeOf(typed), fields); len(lacks) > 0 {
		return Object{}, fmt.Errorf("%w: %s", errMissing, strings.Join(lacks, ", "))
	}

	whole := unstructured.Unstructured{Object: fields}

	id := whole.GetName()
	if namespace := whole.GetNamespace(); namespace != "" {
		id = namespace + "/" + id
	}

	return Object{ID: whole.GetKind() + " " + id, Fields: fields, Typed: typed}, nil
}

func strictDecoder() (runtime.Decoder, error) {
	scheme := runtime.NewScheme()

	for _, add := range []func(*runtime.Scheme) error{
		kubernetes.AddToScheme, apiextensions.AddToScheme, snapshot.AddToScheme, groupsnapshot.AddToScheme, metadata.AddToScheme,
		monitoring.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("the types of Kubernetes: %w", err)
		}
	}

	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer(), nil
}
