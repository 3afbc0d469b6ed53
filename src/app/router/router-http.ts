import { type ApiServer, createRouterApi, readAccess } from "../../api/index.ts";
import { type Clock, messageOf } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { type Logger, watchDescriptors } from "../../observability/index.ts";
import type { Target } from "../../router/index.ts";
import type { RouterService } from "./router-service.ts";

export interface RouterHttpOptions {
  readonly native: Native;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly version: string;
}

export interface RouterHttp extends ApiServer {
  /** Reads the files of tokens again; where one is refused, the tokens of before stay. */
  reload(): Promise<void>;
}

/** The HTTP server of a running router. */
export async function startRouterHttp(
  service: RouterService,
  { native, clock, logger, version }: RouterHttpOptions,
): Promise<RouterHttp> {
  const { listen, busyStatus, connectionsMax, bodyBudgetBytes, bodyTimeoutMs } = service.config.api;
  const { access, warnings, reload } = await readAccess(service.config.api);
  const warn = (lines: readonly string[]) => {
    for (const line of lines) logger.warn(line, {});
  };
  warn(warnings);
  const { router, table, load, index, metrics, health } = service;
  const unreached = () => [...service.unreached];
  const services = {
    ...{ router, table, load, index, marks: service.marks },
    readiness: () => {
      const reasons = service.notReady;
      return { ready: reasons.length === 0, reasons: reasons.length ? reasons : unreached() };
    },
    pending: () => service.pendingWorkers,
    engine: (worker: Target["worker"], rank: number) => service.engine(worker, rank),
    health: () => health.list(),
    metricsText: () => metrics.text(),
    metricsContentType: metrics.contentType,
    register: (worker: Parameters<RouterService["register"]>[0]) => service.register(worker),
    unregister: (worker: Parameters<RouterService["unregister"]>[0]) => service.unregister(worker),
  };
  const api = createRouterApi(services, {
    ...{ version, clock, access, busyStatus },
    ...{ connectionsMax, bodyBudgetBytes, bodyTimeoutMs, native },
    onFault: (path, thrown) =>
      logger.error("a request to the API failed", { path, reason: String(thrown) }),
    onRefused: ({ code, address, count }) =>
      logger.warn("callers of the API were not let in", { code, address, count }),
  });
  metrics.observeApi(() => api.refusals());
  const server = api.listen({ host: listen.host, port: listen.port });
  const descriptors = watchDescriptors(clock, health);
  return {
    ...server,
    [Symbol.asyncDispose]() {
      descriptors[Symbol.dispose]();
      return server[Symbol.asyncDispose]();
    },
    async reload() {
      try {
        warn(await reload());
      } catch (error) {
        logger.error(`the tokens were not reloaded: ${messageOf(error)}`);
      }
    },
  };
}
