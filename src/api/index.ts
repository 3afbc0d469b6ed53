export * from "./access.ts";
export {
  AGENT_METRICS,
  AgentMetrics,
  type AgentSources,
  type PeerSources,
  type PublishedRank,
  type PublishingSources,
} from "./agent-metrics.ts";
export {
  type Api,
  type ApiOptions,
  type ApiServer,
  type ClientConnection,
  ConnectionCap,
  createApi,
  type RefusalNote,
} from "./api.ts";
export { type Access, type Caller, OPEN_ACCESS } from "./authorization.ts";
export { statusOfReceipt } from "./command-schema.ts";
export {
  type PeerReport,
  type PeersReport,
  type PullsReport,
  readPeers,
  readPulls,
} from "./peer-routes.ts";
export type { Problem } from "./problem.ts";
export { RequestError, readRouteRequest, ScanError, scanBody } from "./router/route-request.ts";
export { createProxyApi, createRouterApi, type RouterServices } from "./router/router-api.ts";
export * from "./router/router-metrics.ts";
export type * from "./services.ts";
export type { SessionReport, SessionsReport } from "./session-routes.ts";
export { readStatus, type StatusReport, type StatusSources, toSeconds } from "./status-report.ts";
export * from "./unix-server.ts";
