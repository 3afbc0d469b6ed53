export * from "./channel-transport.ts";
export * from "./client-connection.ts";
export * from "./codec.ts";
export * from "./control-channel.ts";
export * from "./dial.ts";
export * from "./limits.ts";
export * from "./server-connection.ts";
export { oldestOfMost } from "./tls.ts";
