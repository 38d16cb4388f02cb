package place

// Describe returns a description for Place.Containers: of the container of the job, its network, and the IDs of its
// services by their names.
func Describe(id, network string, services map[string]string) map[string]any {
	all := map[string]any{}
	for name, id := range services {
		all[name] = map[string]any{"id": id, "network": network}
	}
	to := map[string]any{"container": map[string]any{"id": id, "network": network}}
	if len(all) > 0 {
		to["services"] = all
	}
	return to
}
