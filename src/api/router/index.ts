export { createProxyApi } from "./proxy-api.ts";
export { RequestError, readRouteRequest } from "./route-request.ts";
export { createRouterApi, type RouterApiOptions } from "./router-api.ts";
export { ScanError, type ScannedBody, scanBody } from "./scan-body.ts";
export type { RouterServices } from "./services.ts";
