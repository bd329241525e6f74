package claim_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestManifestGrantsNoMore: an attacker in the controller must not get more
// than the metadata of claims.
func TestManifestGrantsNoMore(t *testing.T) {
	t.Parallel()

	type metadata struct {
		Name string `json:"name"`
	}

	type rule struct {
		APIGroups []string `json:"apiGroups"`
		Resources []string `json:"resources"`
		Verbs     []string `json:"verbs"`
	}

	type reference struct {
		APIGroup  string `json:"apiGroup"`
		Kind      string `json:"kind"`
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	}

	var role struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Metadata   metadata `json:"metadata"`
		Rules      []rule   `json:"rules"`
	}

	var binding struct {
		APIVersion string      `json:"apiVersion"`
		Kind       string      `json:"kind"`
		Metadata   metadata    `json:"metadata"`
		RoleRef    reference   `json:"roleRef"`
		Subjects   []reference `json:"subjects"`
	}

	text, err := os.ReadFile("../../../deploy/direct-assign/rbac.yaml")
	require.NoError(t, err)

	documents := bytes.Split(text, []byte("\n---\n"))
	require.Len(t, documents, 2, "want: the manifest has two documents")
	require.NoError(t, yaml.UnmarshalStrict(documents[0], &role))
	require.NoError(t, yaml.UnmarshalStrict(documents[1], &binding))

	require.Equal(t, "rbac.authorization.k8s.io/v1 ClusterRole", role.APIVersion+" "+role.Kind)
	require.Equal(t, []rule{{[]string{""}, []string{"persistentvolumeclaims"}, []string{"get"}}}, role.Rules)

	require.Equal(t, "rbac.authorization.k8s.io/v1 ClusterRoleBinding", binding.APIVersion+" "+binding.Kind)
	require.Equal(t, reference{"rbac.authorization.k8s.io", "ClusterRole", role.Metadata.Name, ""}, binding.RoleRef)
	require.Equal(t, []reference{{"", "ServiceAccount", "touchstone-controller", "touchstone"}}, binding.Subjects)
}
