// Command dist writes OCI image layouts, as tar archives, for `make dist`: the driver's image for
// several architectures, and the chart. `skopeo copy oci-archive:FILE docker://…`, `helm push`
// and `ctr images import` take them. It needs no builder, no registry and no foreign
// architecture's programs: layers are archives of files.
//
//	dist image [-hostpath] -version v1 -revision COMMIT -out FILE amd64=BASE.tar,BINARY arm64=…
//	dist chart -out DIRECTORY -version 1.0.0 -app-version v1.0.0 [-repository IMAGE] CHART FILE…
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
)

const (
	fileMode      = 0o644
	directoryMode = 0o755

	binary   = "/usr/local/bin/touchstone"
	hostpath = "hostpathplugin"

	chartConfigType  = "application/vnd.cncf.helm.config.v1+json"
	chartContentType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

var errUsage = errors.New("usage: dist image|chart FLAGS ARGUMENTS")

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}

	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	out := flags.String("out", "", "the file, or for a chart the directory, to write")
	asHostpath := flags.Bool("hostpath", false, "make the image hostpathplugin, as deploy/hostpath/Dockerfile")
	repository := flags.String("repository", "touchstone", "the image that a chart installs, without a tag")
	version := flags.String("version", "", "the version")
	appVersion := flags.String("app-version", "", "a chart's appVersion, the image's tag")
	revision := flags.String("revision", "", "the commit")
	created := flags.Int64("created", 0, "the time of the commit, in seconds since 1970")

	if err := flags.Parse(args[1:]); err != nil {
		return err
	}

	switch args[0] {
	case "image":
		made := image{name: "touchstone", entrypoint: binary, created: time.Unix(*created, 0).UTC()}
		if *asHostpath {
			made.name, made.entrypoint, made.env = hostpath, "/"+hostpath, []string{"TOUCHSTONE_STRICT=observe"}
		}

		made.labels = map[string]string{
			v1.AnnotationTitle:       made.name,
			v1.AnnotationDescription: "A CSI driver with real volumes, to test against and to learn from",
			v1.AnnotationSource:      "https://github.com/touchstone-csi/touchstone",
			v1.AnnotationLicenses:    "Apache-2.0",
			v1.AnnotationVersion:     *version,
			v1.AnnotationRevision:    *revision,
		}

		return made.write(ctx, *out, *version, flags.Args())
	case "chart":
		return writeChart(ctx, *out, *version, *repository+":"+*appVersion, flags.Args())
	default:
		return errUsage
	}
}

// image is the driver's, under its own name or another that its entry point links to.
type image struct {
	name, entrypoint string
	env              []string
	labels           map[string]string
	created          time.Time
}

// write writes an index of one image for each ARCH=BASE,BINARY.
func (i image) write(ctx context.Context, out, version string, platforms []string) error {
	return archive(out, func(store *oci.Store) error {
		index := v1.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageIndex, Annotations: i.labels}

		for _, each := range platforms {
			arch, files, _ := strings.Cut(each, "=")

			base, built, ok := strings.Cut(files, ",")
			if !ok {
				return fmt.Errorf("%w: %q is not ARCH=BASE,BINARY", errUsage, each)
			}

			pushed, err := i.push(ctx, store, arch, base, built)
			if err != nil {
				return fmt.Errorf("image for %s: %w", arch, err)
			}

			index.Manifests = append(index.Manifests, pushed)
		}

		described, err := pushJSON(ctx, store, v1.MediaTypeImageIndex, index)
		if err != nil {
			return err
		}

		return store.Tag(ctx, described, i.name+":"+version)
	})
}

func (i image) push(ctx context.Context, store *oci.Store, arch, base, built string) (v1.Descriptor, error) {
	text, err := os.ReadFile(base)
	if err != nil {
		return v1.Descriptor{}, err
	}

	program, err := i.programLayer(built)
	if err != nil {
		return v1.Descriptor{}, err
	}

	config := v1.Image{
		Created:  &i.created,
		Platform: v1.Platform{Architecture: arch, OS: "linux"},
		// No User: each manifest says which mode it runs, and so as whom.
		Config: v1.ImageConfig{
			Entrypoint: []string{i.entrypoint}, Labels: i.labels,
			Env: append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, i.env...),
		},
		RootFS: v1.RootFS{Type: "layers"},
	}
	manifest := v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest, Annotations: i.labels,
	}

	for _, layer := range [][]byte{text, program} {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(layer))

		compressed, err := compress(layer)
		if err != nil {
			return v1.Descriptor{}, err
		}

		pushed, err := push(ctx, store, v1.MediaTypeImageLayerGzip, compressed)
		if err != nil {
			return v1.Descriptor{}, err
		}

		manifest.Layers = append(manifest.Layers, pushed)
	}

	if manifest.Config, err = pushJSON(ctx, store, v1.MediaTypeImageConfig, config); err != nil {
		return v1.Descriptor{}, err
	}

	pushed, err := pushJSON(ctx, store, v1.MediaTypeImageManifest, manifest)
	pushed.Platform = &config.Platform

	return pushed, err
}

// programLayer returns a layer with the binary, its other name if it has one, and the directories
// that belong to user 65532.
func (i image) programLayer(built string) ([]byte, error) {
	const user = 65532

	program, err := os.ReadFile(built)
	if err != nil {
		return nil, err
	}

	var text bytes.Buffer

	writer := tar.NewWriter(&text)
	entries := []tar.Header{{Name: strings.TrimPrefix(binary, "/"), Mode: directoryMode, Size: int64(len(program)), Typeflag: tar.TypeReg}}

	for _, path := range []string{"run/touchstone/", "var/lib/touchstone/", "var/lib/touchstone/pool/", "var/lib/touchstone/state/"} {
		entries = append(entries, tar.Header{Name: path, Mode: 0o750, Uid: user, Gid: user, Typeflag: tar.TypeDir})
	}

	if i.entrypoint != binary {
		entries = append(entries, tar.Header{Name: strings.TrimPrefix(i.entrypoint, "/"), Linkname: binary, Typeflag: tar.TypeSymlink})
	}

	for n := range entries {
		entries[n].ModTime = i.created

		err := writer.WriteHeader(&entries[n])
		if err == nil && entries[n].Typeflag == tar.TypeReg {
			_, err = writer.Write(program)
		}

		if err != nil {
			return nil, err
		}
	}

	return text.Bytes(), writer.Close()
}

func compress(text []byte) ([]byte, error) {
	var compressed bytes.Buffer

	writer := gzip.NewWriter(&compressed)
	_, err := writer.Write(text)

	return compressed.Bytes(), errors.Join(err, writer.Close())
}

// writeChart writes the chart as helm packages it, and as an OCI archive: with further files, and
// values.yaml installs the image.
func writeChart(ctx context.Context, out, version, image string, sources []string) error {
	if len(sources) == 0 {
		return errUsage
	}

	loaded, err := loader.LoadDir(sources[0])
	if err != nil {
		return err
	}

	at := strings.LastIndex(image, ":")
	repository, appVersion := image[:at], image[at+1:]
	loaded.Metadata.Version, loaded.Metadata.AppVersion = version, appVersion
	loaded.Metadata.Annotations["artifacthub.io/images"] = "- name: touchstone\n  image: " + image + "\n"

	for _, file := range loaded.Raw {
		if file.Name == chartutil.ValuesfileName {
			file.Data = bytes.Replace(file.Data, []byte("\n  repository: touchstone\n"), []byte("\n  repository: "+repository+"\n"), 1)
		}
	}

	for _, path := range sources[1:] {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		loaded.Files = append(loaded.Files, &common.File{Name: filepath.Base(path), Data: text})
	}

	packed, err := chartutil.Save(loaded, out)
	if err != nil {
		return err
	}

	text, err := os.ReadFile(packed)
	if err != nil {
		return err
	}

	return archive(strings.TrimSuffix(packed, ".tgz")+".chart.oci.tar", func(store *oci.Store) error {
		return pushChart(ctx, store, loaded.Metadata, text)
	})
}

func pushChart(ctx context.Context, store *oci.Store, metadata *chart.Metadata, packed []byte) error {
	config, err := pushJSON(ctx, store, chartConfigType, metadata)
	if err != nil {
		return err
	}

	layer, err := push(ctx, store, chartContentType, packed)
	if err != nil {
		return err
	}

	manifest, err := pushJSON(ctx, store, v1.MediaTypeImageManifest, v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: config, Layers: []v1.Descriptor{layer},
		Annotations: map[string]string{v1.AnnotationTitle: metadata.Name, v1.AnnotationVersion: metadata.Version},
	})
	if err != nil {
		return err
	}

	return store.Tag(ctx, manifest, metadata.Version)
}

func pushJSON(ctx context.Context, store *oci.Store, mediaType string, value any) (v1.Descriptor, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return v1.Descriptor{}, err
	}

	return push(ctx, store, mediaType, text)
}

func push(ctx context.Context, store *oci.Store, mediaType string, text []byte) (v1.Descriptor, error) {
	described := content.NewDescriptorFromBytes(mediaType, text)

	exists, err := store.Exists(ctx, described)
	if err == nil && !exists {
		err = store.Push(ctx, described, bytes.NewReader(text))
	}

	return described, err
}

// archive writes a tar of the layout that fill fills, and its checksum's line to standard output.
func archive(out string, fill func(*oci.Store) error) error {
	directory, err := os.MkdirTemp("", "dist-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)

	store, err := oci.New(directory)
	if err != nil {
		return err
	}

	if err := fill(store); err != nil {
		return err
	}

	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer file.Close()

	sum := sha256.New()
	writer := tar.NewWriter(io.MultiWriter(file, sum))

	if err := errors.Join(addTree(writer, directory), writer.Close(), file.Close()); err != nil {
		return err
	}

	fmt.Printf("%x  %s\n", sum.Sum(nil), filepath.Base(out))

	return nil
}

// addTree adds files only, in the order of their names, without times: the same content makes the
// same archive.
func addTree(writer *tar.Writer, root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}

		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		if strings.HasPrefix(name, "ingest") {
			return nil
		}

		if err := writer.WriteHeader(&tar.Header{Name: name, Mode: fileMode, Size: int64(len(text))}); err != nil {
			return err
		}

		_, err = writer.Write(text)

		return err
	})
}
