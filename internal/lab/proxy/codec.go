package proxy

import (
	"errors"
	"fmt"

	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

var errFrame = errors.New("not a frame")

// frame is a message as it is on the wire.
type frame struct{ bytes mem.BufferSlice }

// Codec passes messages as encoded frames. It has the name of protobuf's codec, whose
// encoding the frames have.
type Codec struct{}

// Name implements encoding.CodecV2.
func (Codec) Name() string { return protocodec.Name }

// Marshal implements encoding.CodecV2. It gives the frame's bytes away.
func (Codec) Marshal(from any) (mem.BufferSlice, error) {
	message, ok := from.(*frame)
	if !ok {
		return nil, fmt.Errorf("%w: %T", errFrame, from)
	}

	return message.bytes, nil
}

// Unmarshal implements encoding.CodecV2. The frame keeps the bytes until
// Marshal gives them away.
func (Codec) Unmarshal(data mem.BufferSlice, into any) error {
	message, ok := into.(*frame)
	if !ok {
		return fmt.Errorf("%w: %T", errFrame, into)
	}

	data.Ref()
	message.bytes = data

	return nil
}
