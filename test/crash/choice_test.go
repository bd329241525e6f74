package crash_test

// choice is one way on and how likely it is.
type choice struct {
	weight int
	step   func() *step
}

// next chooses what the CO does with the volume. A call of unknown outcome
// comes first: it is repeated, or taken back.
func (v *volume) next() *step {
	if v.pending != nil {
		if v.pending.undo != nil && v.random.IntN(3) == 0 {
			return v.pending.undo()
		}

		return v.pending
	}

	if v.behind {
		return v.expandOnNode()
	}

	choices := v.choices()
	if v.phase >= created && v.capacity < v.kind.bytes+expansions*v.kind.grows {
		choices = append(choices, choice{1, v.expand})
	}

	if v.phase >= created && v.phase <= staged && v.kind.image() {
		choices = append(choices, choice{1, func() *step { return v.modify(anyReadAhead(v.random)) }})
	}

	total := 0
	for _, each := range choices {
		total += each.weight
	}

	drawn := v.random.IntN(total)
	for _, each := range choices {
		if drawn -= each.weight; drawn < 0 {
			return each.step()
		}
	}

	panic("the weights do not add up")
}

func (v *volume) choices() []choice {
	switch v.phase {
	case absent:
		return []choice{{1, v.create}}
	case created:
		return []choice{{6, v.attach}, {3, v.delete}}
	case attached:
		return []choice{{6, v.stage}, {3, v.detach}}
	case staged, deleted:
	}

	choices := make([]choice, 0, 4)

	for _, place := range []target{writable, readOnly} {
		if v.published[place] {
			choices = append(choices, choice{3, func() *step { return v.unpublish(place) }},
				choice{1, func() *step { return v.read(place) }})
		} else {
			choices = append(choices, choice{3, func() *step { return v.publish(place) }})
		}
	}

	if v.published[writable] {
		choices = append(choices, choice{4, v.write})
	}

	if len(v.published) == 0 {
		choices = append(choices, choice{3, v.unstage})
	}

	return choices
}

// down is the next step on the shortest way to the end, nil at the end.
func (v *volume) down() *step {
	place, published := v.anyTarget()

	switch {
	case v.pending != nil:
		return v.pending
	case published:
		return v.unpublish(place)
	case v.phase == staged:
		return v.unstage()
	case v.phase == attached:
		return v.detach()
	case v.phase == created:
		return v.delete()
	default:
		return nil
	}
}

// up is the next step on the shortest way to a publication, nil there.
func (v *volume) up() *step {
	_, published := v.anyTarget()

	switch {
	case v.pending != nil:
		return v.pending
	case published || v.phase == deleted:
		return nil
	case v.phase == absent:
		return v.create()
	case v.phase == created:
		return v.attach()
	case v.phase == attached:
		return v.stage()
	default:
		return v.publish(writable)
	}
}

// settle is the next step until no outcome is unknown.
func (v *volume) settle() *step {
	if v.pending != nil {
		return v.next()
	}

	return nil
}
