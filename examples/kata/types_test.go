package kata_test

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The Kubernetes types of the manifests, as far as these use them: k8s.io/api is
// nothing that a storage driver otherwise needs. What is not here is refused, so
// that a misspelt field is seen.

type object struct {
	metav1.TypeMeta
	metav1.ObjectMeta `json:"metadata"`
}

type runtimeClass struct {
	object

	Handler string `json:"handler"`
}

type storageClass struct {
	object

	Provisioner          string            `json:"provisioner"`
	Parameters           map[string]string `json:"parameters"`
	VolumeBindingMode    string            `json:"volumeBindingMode"`
	AllowVolumeExpansion bool              `json:"allowVolumeExpansion"`
	ReclaimPolicy        string            `json:"reclaimPolicy"`
}

type claim struct {
	object

	Spec struct {
		StorageClassName string   `json:"storageClassName"`
		VolumeMode       string   `json:"volumeMode"`
		AccessModes      []string `json:"accessModes"`
		Resources        struct {
			Requests map[string]resource.Quantity `json:"requests"`
		} `json:"resources"`
	} `json:"spec"`
}

type pod struct {
	object

	Spec struct {
		RuntimeClassName string      `json:"runtimeClassName"`
		Containers       []container `json:"containers"`
		Volumes          []podVolume `json:"volumes"`
	} `json:"spec"`
}

type container struct {
	Name         string   `json:"name"`
	Image        string   `json:"image"`
	Command      []string `json:"command"`
	VolumeMounts []struct {
		Name      string `json:"name"`
		MountPath string `json:"mountPath"`
	} `json:"volumeMounts"`
}

type podVolume struct {
	Name                  string `json:"name"`
	PersistentVolumeClaim struct {
		ClaimName string `json:"claimName"`
	} `json:"persistentVolumeClaim"`
}
