import { createRouterApi, type RouterServices } from "../../api/index.ts";
import {
  formatProblem,
  loadRouterConfig,
  type Overrides,
  parseRouterConfig,
  type RouterConfig,
  readMachineFacts,
} from "../../config/index.ts";
import { HearthError, systemClock, systemRandom } from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import { createLogger } from "../../observability/index.ts";
import { checkNatsFiles } from "../credentials.ts";
import { createServiceManager, serviceEnvironment } from "../process.ts";
import { type RunOptions, runService } from "../run-service.ts";
import { type HttpParts, type HttpServer, serveHttp } from "../serve-http.ts";
import { RouterService } from "./router-service.ts";

export interface RunRouterOptions extends RunOptions {
  /** Configuration file. Null: use defaults and the command line only. */
  readonly configPath: string | null;
  /** Settings from the command line. They override the file, also on reload. */
  readonly overrides: Overrides;
}

/** Reads the router's configuration. Throws CONFIG_INVALID listing all problems. */
export async function readRouterConfig(
  path: string | null,
  overrides: Overrides = {},
): Promise<RouterConfig> {
  const facts = readMachineFacts();
  const result =
    path === null
      ? parseRouterConfig("", "command line", facts, overrides)
      : await loadRouterConfig(path, facts, overrides);
  if (result.ok) return result.config;
  throw new HearthError("CONFIG_INVALID", result.problems.map(formatProblem).join("\n"));
}

/** Runs the router until a signal stops it. */
export async function runRouter(options: RunRouterOptions): Promise<void> {
  const { version, commit, configPath, overrides, privateFolder, write } = options;
  const config = await readRouterConfig(configPath, overrides);
  await checkNatsFiles(config.nats);
  const native = loadNative();
  const clock = systemClock;
  using logger = createLogger({ ...config.log, write, clock });
  using manager = createServiceManager(native, clock, serviceEnvironment());
  const parts = { config, native, clock, random: systemRandom, logger, version, commit };
  await runService<RouterService>({
    ...{ kind: "router", logger, manager, privateFolder },
    start: () => RouterService.start(parts),
    serve: (service) => startRouterHttp(service, parts),
    async reload(service) {
      if (configPath !== null) await service.reload(await readRouterConfig(configPath, overrides));
    },
    ready: { router: config.router.id, mode: config.router.mode },
    statuses: ["routing", "routing"],
  });
}

/** Maximum bytes of all request bodies in memory together. Prompts given as tokens are long. */
const BODY_BUDGET_BYTES = 256 * 2 ** 20;

/** Starts the HTTP API of a running router. */
export function startRouterHttp(service: RouterService, parts: HttpParts): Promise<HttpServer> {
  const { router, table, load, index, metrics, health, config } = service;
  return serveHttp(config.api, { ...parts, health }, (common) => {
    const services: RouterServices = {
      ...{ router, table, load, index, marks: service.marks },
      ...{ workers: service.workers.registry, engines: service.workers.engines },
      readiness: () => {
        const { notReady, workers } = service;
        const reasons = notReady.length > 0 ? notReady : workers.unreached;
        return { ready: notReady.length === 0, reasons };
      },
      health: () => health.list(),
      metricsText: () => metrics.text(() => ({ ...service.sources, refusals: api.refusals() })),
      metricsContentType: metrics.contentType,
    };
    const limits = { busyStatus: config.api.busyStatus, bodyBudgetBytes: BODY_BUDGET_BYTES };
    const api = createRouterApi(services, { ...common, ...limits });
    return api;
  });
}
