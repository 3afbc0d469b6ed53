export { type ReadAccess, readAccess } from "./access.ts";
export {
  type Api,
  type ApiOptions,
  type ApiServer,
  createApi,
  type ListenOptions,
  type Peer,
} from "./api.ts";
export type { HealthServices } from "./common-routes.ts";
export { ConnectionCap, type ConnectionCapOptions } from "./connection-cap.ts";
export { type Access, type Caller, OPEN_ACCESS } from "./gate.ts";
export type { PeerReport, PeersReport, PullsReport } from "./peer-report.ts";
export type { Problem } from "./problem.ts";
export { statusOfReceipt } from "./receipt-answer.ts";
export type { RefusalNote } from "./refusals.ts";
export {
  createProxyApi,
  createRouterApi,
  RequestError,
  type RouterApiOptions,
  type RouterServices,
  readRouteRequest,
  ScanError,
  type ScannedBody,
  scanBody,
} from "./router/index.ts";
export type {
  ApiServices,
  ControlServices,
  PeerServices,
  PersistReport,
  PurgeOutcome,
  PurgeRequest,
  Readiness,
} from "./services.ts";
export type { SessionReport, SessionsReport } from "./session-report.ts";
export { NAMESPACES_SHOWN_MAX, type StatusReport } from "./status-report.ts";
export { readTls, type ServerTls, type TlsFiles } from "./tls.ts";
export { readTokens, type TokenEntry, type TokenFiles, type TokenList } from "./token-files.ts";
export { Tokens } from "./tokens.ts";
export {
  type LocalCaller,
  serveUnix,
  type UnixServer,
  type UnixServerOptions,
} from "./unix-server.ts";
