package main

// randomRowMutants break rows of docs/spec.md that were drawn at random: 90 of the 497 that hold,
//
//	awk -F'\t' '$6=="holds"{print $1}' docs/spec/rows.tsv | shuf --random-source=<(yes 20261124) -n 90
//
// One behaviour of the code is often several rows; the name has all that it breaks. Rows without
// one here are those of specMutants; of what only a CO, a document or the test of all responses
// (TestObserveFindsEachProblem) shows; and those that no change of a few words breaks.
func randomRowMutants() []regression {
	return []regression{
		{
			name: "spec/CEV-5,CPV-13,DS-6,DVGS-4-missing-id", in: "rpc.CheckID",
			old: `	if err := CheckPresent(field, id); err != nil {
		return err
	}`, new: `	if id == "" {
		return nil
	}`,
			breaks: "a call without an id is not refused as incomplete", tests: in("test/driver/requests", "TestMissingFieldsAreRefused"),
		},
		{
			name: "spec/CV-9-missing-name", in: "controller.checkName",
			old: `return rpc.Invalid("name is missing")`, new: `return nil`,
			breaks: "a volume without a name is created", tests: in("test/driver/requests", "TestMissingFieldsAreRefused"),
		},
		{
			name: "spec/CV-12,CV-34-missing-capabilities", in: "controller.parser.parseCreate",
			old: `if len(request.GetVolumeCapabilities()) == 0 {`, new: `if len(request.GetVolumeCapabilities()) < 0 {`,
			breaks: "a volume without capabilities is created", tests: in("test/driver/requests", "TestMissingFieldsAreRefused"),
		},
		{
			name: "spec/CV-35-missing-access-type", in: "volume.ParseCapability",
			old: `return Capability{}, fmt.Errorf("%w: access type is missing; it must be block or mount", ErrIncomplete)`, new: `return capability, nil`,
			breaks: "a capability without an access type is accepted", tests: in("test/driver/requests", "TestIncompleteCapabilitiesAreRefused"),
		},
		{
			name: "spec/CV-40-negative-size", in: "rpc.CheckCapacityRange",
			old: `case required < 0 || limit < 0:`, new: `case required < 0 && limit < 0:`,
			breaks: "a negative size is accepted", tests: in("test/driver/create", "TestSizesAreRoundedUpWithinTheirLimits"),
		},
		{
			name: "spec/CV-39,CV-8-too-small", in: "controller.parser.sizeAsked",
			old: `size := max((required+RoundBytes-1)/RoundBytes*RoundBytes, smallest)`, new: `size := max(required/RoundBytes*RoundBytes, smallest)`,
			breaks: "a volume is smaller than required_bytes", tests: in("test/driver/create", "TestSizesAreRoundedUpWithinTheirLimits"),
		},
		{
			name: "spec/CV-53,CV-55,CV-57,CV-58,CV-59,CV-60-requisite", in: "record.Segments.CheckRequirement",
			old: `if s == "" || len(requisite) == 0 || slices`, new: `if s == "" || len(requisite) >= 0 || slices`,
			breaks: "a volume is made although no requisite topology reaches it", tests: in("test/driver/create", "TestVolumesAreMadeWhereTheTopologyAllows"),
		},
		{
			name: "spec/CV-22-topology-not-advertised", in: "record.CheckTopologyRequirement",
			old: `case !advertised:`, new: `case given == nil:`,
			breaks: "a topology requirement is accepted without the capability", tests: in("test/driver/requests", "TestResponsesWithoutACapability"),
		},
		{
			name: "spec/CV-52-topology-not-returned", in: "record.Segments.AccessibleTopology",
			old: `return []*csi.Topology{{Segments: s.values()}}`, new: `return nil`,
			breaks: "a volume's topology is not returned", tests: in("test/driver/create", "TestVolumesAreMadeWhereTheTopologyAllows"),
		},
		{
			name: "spec/CV-2,CV-3-not-idempotent", in: "controller.Service.ensureVolume",
			old: `ok && existing.Phase == record.PhaseReady {`, new: `ok && existing.Phase == record.PhaseDeleting {`,
			breaks: "a repeated CreateVolume does not find its volume", tests: in("test/driver/create", "TestCreateIsIdempotentByName"),
		},
		{
			name: "spec/CV-23-mutable-ignored", in: "controller.checkSameVolume",
			old: `case !v.Mutable.With(wanted.mutable).Equal(v.Mutable):`, new: `case false:`,
			breaks: "a repeated CreateVolume with other mutable parameters is OK", tests: in("test/driver/modify", "TestCreateComparesMutableParameters"),
		},
		{
			name: "spec/CV-24-mutable-not-advertised", in: "controller.parser.parseMutable",
			old: `if len(given) > 0 && !p.has(capability.ModifyVolume) {`, new: `if len(given) < 0 && !p.has(capability.ModifyVolume) {`,
			breaks: "mutable parameters are accepted without MODIFY_VOLUME", tests: in("test/driver/modify", "TestModifyNeedsTheCapability"),
		},
		{
			name: "spec/CV-25-empty-source", in: "controller.parser.parseSource",
			old: `return record.Source{}, rpc.Invalid("volume_content_source: name a snapshot or a volume")`, new: `return record.Source{}, nil`,
			breaks: "an empty content source makes an empty volume", tests: in("test/driver/copies", "TestRequestsWithASourceAreValidated"),
		},
		{
			name: "spec/CV-26-missing-snapshot", in: "controller.parser.parseSource",
			old: `return source, rpc.CheckID("volume_content_source: snapshot_id", source.SnapshotID)`, new: `return source, nil`,
			breaks: "a source without a snapshot id makes an empty volume", tests: in("test/driver/copies", "TestRequestsWithASourceAreValidated"),
		},
		{
			name: "spec/CV-28-missing-volume", in: "controller.parser.parseSource",
			old: `return source, rpc.CheckID("volume_content_source: volume_id", source.VolumeID)`, new: `return source, nil`,
			breaks: "a source without a volume id makes an empty volume", tests: in("test/driver/copies", "TestRequestsWithASourceAreValidated"),
		},
		{
			name: "spec/CV-27-restore-not-advertised", in: "controller.parser.parseSource",
			old: `if !p.has(capability.CreateDeleteSnapshot) {`, new: `if false {`,
			breaks: "a snapshot is restored without the capability", tests: in("test/driver/copies", "TestSourcesNeedTheirCapability"),
		},
		{
			name: "spec/CV-29-clone-not-advertised", in: "controller.parser.parseSource",
			old: `if !p.has(capability.CloneVolume) {`, new: `if false {`,
			breaks: "a volume is cloned without the capability", tests: in("test/driver/copies", "TestSourcesNeedTheirCapability"),
		},
		{
			name: "spec/CV-7-copy-not-grown", in: "controller.checkSameVolume",
			old: `case v.CapacityBytes < required || limit > 0 && v.CapacityBytes > limit:`, new: `case limit > 0 && v.CapacityBytes > limit:`,
			breaks: "a repeated call for a larger volume is OK", tests: in("test/driver/create", "TestCreateIsIdempotentByName"),
		},
		{
			name: "spec/CV-33-mount-group", in: "capability.Set.CheckMountGroup",
			old: `	_, err := wanted.MountGroupID()

	return err
}`, new: `	_, _ = wanted.MountGroupID()

	return nil
}`,
			breaks: "a group that is none is accepted", tests: in("internal/csi/capability", "TestAMountGroupIsANumberAndNeedsItsCapability"),
		},
		{
			name: "spec/CV-48,CV-49,CV-50-other-source", in: "controller.checkSameVolume",
			old: `case v.Source != wanted.source:`, new: `case v.Source == (record.Source{VolumeID: "x"}):`,
			breaks: "a repeated restore of another source is OK", tests: in("test/driver/copies", "TestARestoreIsIdempotent"),
		},
		{
			name: "spec/CV-1,P-1,NGC-1,GCGC-1,RPCI-5,RPCI-6-served-though-disabled", in: "capability.Set.disable",
			old: `for _, method := range gone.methods {
		s.methods[method] = gone.name`, new: `for _, method := range gone.methods {
		_ = method`,
			breaks: "a method is served although its capability is not advertised", tests: in("test/driver/requests", "TestEveryCapabilityCanBeDisabled"),
		},
		{
			name: "spec/GPC-1-service-not-advertised", in: "capability.Set.Plugin",
			old: `return s.Has(name) && (`, new: `return s.Has(name) && name != GroupControllerService && (`,
			breaks: "a service is not advertised", tests: in("pkg/identity", "TestGetPluginCapabilitiesFollowsTheConfig"),
		},
		{
			name: "spec/GPC-8-online", in: "capability.Set.Plugin",
			old: `if s.Has(Online) {`, new: `if false {`,
			breaks: "ONLINE expansion is not advertised", tests: in("pkg/identity", "TestGetPluginCapabilitiesFollowsTheConfig"),
		},
		{
			name: "spec/GPI-1-domain-name", in: "driver.checkDriverName",
			old: `len(name) <= maxDriverName && `, new: `len(name) <= maxDriverName || `,
			breaks: "a driver name that is no domain name is accepted", tests: in("internal/driver", "TestNamesFollowTheSpec"),
		},
		{
			name: "spec/P-4,PE-2,PE-4-unhealthy", in: "identity.Service.Probe",
			old: `rpc.Errorf(codes.FailedPrecondition, "unhealthy`, new: `rpc.Errorf(codes.Unavailable, "unhealthy`,
			breaks: "Probe of an unhealthy plugin has another code", tests: in("pkg/identity", "TestProbeFailsWhileTheCheckFails"),
		},
		{
			name: "spec/PE-1-unhealthy-is-ok", in: "identity.Service.Probe",
			old: `	if err != nil {
		return nil, rpc.Errorf(codes.FailedPrecondition`, new: `	if err == nil && !ready {
		return nil, rpc.Errorf(codes.FailedPrecondition`,
			breaks: "Probe of an unhealthy plugin succeeds", tests: in("pkg/identity", "TestProbeFailsWhileTheCheckFails"),
		},
		{
			name: "spec/P-5-initializing", in: "identity.Service.Health",
			old: `	default:
		return false, nil`, new: `	default:
		return true, nil`,
			breaks: "Probe says ready while the plugin initializes", tests: in("pkg/identity", "TestProbeIsNotReadyWhileInitializingAndDoesNotCheck"),
		},
		{
			name: "spec/NPV-11-relative-target", in: "node.Config.checkPath",
			old: `return rpc.Invalid("%s: %w", field, err)`, new: `return rpc.Errorf(codes.NotFound, "%s: %w", field, err)`,
			breaks: "a relative target path has another code", tests: in("test/driver/requests", "TestImpossiblePathsAreInvalidArguments"),
		},
		{
			name: "spec/NPV-10,NPV-17,NEV-10-short-paths", in: "driver.maxPath",
			old: `4096`, new: `127`,
			breaks: "a path of 128 bytes is refused", tests: in("internal/driver", "TestEveryFieldOfEveryRequestIsLimited"),
		},
		{
			name: "spec/SL-1-long-request-strings", in: "driver.maxString",
			old: `128`, new: `256`,
			breaks: "a string of more than 128 bytes is accepted", tests: in("internal/driver", "TestEveryFieldOfEveryRequestIsLimited"),
		},
		{
			name: "spec/RPCI-3,SR-6-secrets-logged", in: "driver.stripped.LogValue",
			old: `text := string(rpc.JSON(rpc.HideSecrets(message)))`,
			new: `_ = rpc.HideSecrets
	text := fmt.Sprint(message)`,
			breaks: "secrets reach the log", tests: in("internal/driver", "TestSecretsAndMountFlagsNeverReachTheLog"),
		},
		{
			name: "spec/NGVSE-2,NGVSE-4,NGVS-3-anywhere", in: "staged.At",
			old: `!published && path != found.StagingPath`, new: `!published && path == ""`,
			breaks: "statistics are given for a path where the volume is not", tests: in("test/conformance", "TestErrorTables"),
		},
		{
			name: "spec/NSVE-4-unknown-volume", in: "node.parseVolume",
			old: `	if !volume.IsID(request.GetVolumeId()) {
		return nil, rpc.Errorf(codes.NotFound,`, new: `	if !volume.IsID(request.GetVolumeId()) {
		return nil, rpc.Errorf(codes.FailedPrecondition,`,
			breaks: "staging a volume that cannot exist has another code", tests: in("test/conformance", "TestErrorTables"),
		},
		{
			name: "spec/NUV-7,NUV-8-unstage-twice", in: "node.lifecycle.unstage",
			old: `	if !known {
		return l.unstageUnknown(ctx, id, path)
	}`, new: `	if !known {
		return rpc.Errorf(codes.NotFound, "volume %s is not staged", id)
	}`,
			breaks: "a repeated NodeUnstageVolume fails", tests: in("test/conformance", "TestErrorTables"),
		},
		{
			name: "spec/GSE-1,GSE-2,GSE-4-unknown-snapshot", in: "catalog.Catalog.FindSnapshot",
			old: `errdefs.Errorf(errdefs.ErrNotFound, "snapshot`, new: `errdefs.Errorf(errdefs.ErrFailedPrecondition, "snapshot`,
			breaks: "an unknown snapshot has another code", tests: in("test/conformance", "TestErrorTables"),
		},
		{
			name: "spec/DVGS-2-group-deleted-twice", in: "controller.Groups.deleteGroup",
			old: `	if !ok || found.Phase == record.PhaseCreating {
		return nil
	}`, new: `	if !ok || found.Phase == record.PhaseCreating {
		return rpc.Errorf(codes.NotFound, "group snapshot %s does not exist", id)
	}`,
			breaks: "a repeated deletion of a group fails", tests: in("test/conformance", "TestErrorTables"),
		},
		{
			name: "spec/CVGS-10,CVGSE-5-members", in: "controller.checkSameGroup",
			old: `case !slices.Equal(g.SourceVolumeIDs, wanted.sourceIDs):`, new: `case false:`,
			breaks: "a group of other volumes is answered with an existing one", tests: in("test/conformance", "TestErrorTables"),
		},
		{
			name: "spec/ES-2-code", in: "catalog.volumeMissing",
			old: `errdefs.Errorf(errdefs.ErrNotFound, "volume`, new: `errdefs.Errorf(errdefs.ErrInternal, "volume`,
			breaks: "an unknown volume has another code", tests: in("test/conformance", "TestErrorTables"),
		},
		{
			name: "spec/GMA-1,GMD-4-missing-snapshot", in: "metadata.Service.open",
			old: `if err := rpc.CheckID(field, id); err != nil {`, new: `if err := rpc.CheckID(field, id); err != nil && id != "" {`,
			breaks: "a missing snapshot_id has another code", tests: in("test/driver/metadata", "TestInvalidMetadataRequestsAreRefused"),
		},
		{
			name: "spec/DS-3-unknown-snapshot", in: "controller.Service.deleteSnapshot",
			old: `	case !ok || found.Phase == record.PhaseCreating:
		return nil`, new: `	case !ok || found.Phase == record.PhaseCreating:
		return rpc.Errorf(codes.NotFound, "snapshot %s does not exist", id)`,
			breaks: "a repeated DeleteSnapshot fails", tests: in("test/conformance", "TestErrorTables"),
		},
		{
			name: "spec/GPI-2-long-name", in: "driver.maxDriverName",
			old: `63`, new: `64`,
			breaks: "a driver name of 64 characters is accepted", tests: in("internal/driver", "TestNamesFollowTheSpec"),
		},
		{
			name: "spec/ES-12-no-message", in: "rpc.Status",
			old: `return status.Error(c, err.Error())`, new: `return status.Error(c, "")`,
			breaks: "an error has no message", tests: in("test/conformance", "TestErrorTables"),
		},
	}
}
