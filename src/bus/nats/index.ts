export { type CredentialFiles, checkFiles, type TlsFiles } from "./credentials.ts";
export { natsVersionIn, type Reached, reach, type Target } from "./greeting.ts";
export { type BusOptions, openBus } from "./open-bus.ts";
export { type Login, parseServers, type Server, type ServerList, serverLike } from "./servers.ts";
