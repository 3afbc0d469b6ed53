/** Names what is spoken in the handshake. */
export const STREAM_PROTOCOL = "hearth-stream/1";
