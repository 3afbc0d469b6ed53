export { createProxyApi } from "./proxy-api.ts";
export { createRouterApi, type RouterApiOptions } from "./router-api.ts";
export type { RouterServices } from "./services.ts";
