export { Peer, type PeerEvents } from "./peer.ts";
export * from "./sockets.ts";
export { encodeMessage, FrameReader, type ZmtpFrame } from "./wire.ts";
export * from "./zmtp.ts";
