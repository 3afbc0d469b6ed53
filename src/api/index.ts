export { type Api, type ApiOptions, type ApiServer, createApi, type ListenOptions } from "./api.ts";
export type { Problem } from "./problem.ts";
export type {
  ApiServices,
  PersistReport,
  PurgeOutcome,
  PurgeRequest,
  Readiness,
} from "./services.ts";
export type { SessionReport, SessionsReport } from "./session-report.ts";
export type { StatusReport } from "./status-report.ts";
export { readTokenFile } from "./token.ts";
