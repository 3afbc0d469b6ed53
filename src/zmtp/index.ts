export { connectDealer, type DealerOptions } from "./dealer.ts";
export { engineBinds, formatEndpoint, parseEndpoint, type ZmtpEndpoint } from "./endpoint.ts";
export { encodeMessage, FrameReader, type ZmtpFrame } from "./frames.ts";
export { ZMTP_LIMITS, type ZmtpLimits } from "./limits.ts";
export type { ZmtpOptions } from "./options.ts";
export { bindPublisher } from "./publisher.ts";
export { bindRouter, type RouterOptions } from "./router.ts";
export { bindSubscriber, connectSubscriber, type SubscriberOptions } from "./subscriber.ts";
export type * from "./zmtp.ts";
