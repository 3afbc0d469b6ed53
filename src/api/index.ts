export {
  type ReadAccess,
  readAccess,
  readTls,
  readTokens,
  type ServerTls,
  type TlsFiles,
  type TokenEntry,
  type TokenFiles,
  type TokenList,
  Tokens,
} from "./access.ts";
export type { RefusalNote } from "./api.ts";
export {
  type Api,
  type ApiOptions,
  type ApiServer,
  type ClientConnection,
  ConnectionCap,
  type ConnectionCapOptions,
  createApi,
  type ListenOptions,
} from "./api.ts";
export { type Access, type Caller, OPEN_ACCESS } from "./authorization.ts";
export { statusOfReceipt } from "./command-schema.ts";
export type { HealthServices } from "./common-routes.ts";
export type { PeerReport, PeersReport, PullsReport } from "./peer-routes.ts";
export type { Problem } from "./problem.ts";
export {
  RequestError,
  readRouteRequest,
  ScanError,
  type ScannedBody,
  scanBody,
} from "./router/route-request.ts";
export type { RouterServices } from "./router/router-api.ts";
export { createProxyApi, createRouterApi, type RouterApiOptions } from "./router/router-api.ts";
export type {
  ApiServices,
  ControlServices,
  PeerServices,
  PersistReport,
  PurgeOutcome,
  PurgeRequest,
  Readiness,
} from "./services.ts";
export type { SessionReport, SessionsReport } from "./session-routes.ts";
export { NAMESPACES_SHOWN_MAX, type StatusReport } from "./status-report.ts";
export {
  type LocalCaller,
  serveUnix,
  type UnixServer,
  type UnixServerOptions,
} from "./unix-server.ts";
