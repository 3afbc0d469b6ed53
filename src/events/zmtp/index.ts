export { Peer, type PeerEvents } from "./peer.ts";
export {
  bindPublisher,
  bindRouter,
  connectDealer,
  connectSubscriber,
  type DealerOptions,
  type SubscriberOptions,
  type ZmtpDealer,
  type ZmtpSubscriber,
} from "./sockets.ts";
export { encodeMessage, FrameReader, type ZmtpFrame } from "./wire.ts";
export {
  engineBinds,
  formatEndpoint,
  parseEndpoint,
  ZMTP_LIMITS,
  type ZmtpEndpoint,
  type ZmtpLimits,
  type ZmtpMessage,
  type ZmtpOptions,
  type ZmtpPublisher,
  type ZmtpReply,
  type ZmtpRouter,
  type ZmtpState,
} from "./zmtp.ts";
