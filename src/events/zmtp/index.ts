export { Peer, type PeerEvents } from "./peer.ts";
export {
  bindPublisher,
  bindRouter,
  bindSubscriber,
  connectDealer,
  connectSubscriber,
  type DealerOptions,
  type RouterOptions,
  type SubscriberOptions,
} from "./sockets.ts";
export { encodeMessage, FrameReader, type ZmtpFrame } from "./wire.ts";
export {
  engineBinds,
  formatEndpoint,
  parseEndpoint,
  ZMTP_LIMITS,
  type ZmtpDealer,
  type ZmtpEndpoint,
  type ZmtpFlow,
  type ZmtpLimits,
  type ZmtpMessage,
  type ZmtpOptions,
  type ZmtpPublisher,
  type ZmtpReply,
  type ZmtpRouter,
  type ZmtpState,
  type ZmtpSubscriber,
} from "./zmtp.ts";
