import { type Api, type ApiOptions, type ApiServer, readAccess } from "../api/index.ts";
import type { Config, RouterConfig } from "../config/index.ts";
import { type Clock, messageOf } from "../core/index.ts";
import type { Native } from "../native/index.ts";
import { type Health, type Logger, watchDescriptors } from "../observability/index.ts";

export interface HttpParts {
  readonly native: Native;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly version: string;
}

/** The running HTTP server of an agent or a router. */
export interface HttpServer extends ApiServer {
  readonly api: Api;
  /** Rereads the token files. If one is invalid, the previous tokens stay valid. */
  reload(): Promise<void>;
}

/**
 * Starts an HTTP server with the API that `create` returns. Logs refused callers and internal
 * errors.
 */
export async function serveHttp(
  config: Config["api"] | RouterConfig["api"],
  { native, clock, logger, version, health }: HttpParts & { readonly health: Health },
  create: (options: ApiOptions) => Api | Promise<Api>,
): Promise<HttpServer> {
  const { listen } = config;
  const { access, warnings, reload } = await readAccess(config);
  const warn = (lines: readonly string[]) => {
    for (const line of lines) logger.warn(line, {});
  };
  warn(warnings);
  const api = await create({
    ...{ version, clock, access, native },
    onFault: (path, thrown) => logger.error("API request failed", { path, reason: String(thrown) }),
    onRefused: (note) => logger.warn("API callers rejected", { ...note }),
  });
  const server = api.listen({ host: listen.host, port: listen.port });
  const descriptors = watchDescriptors(clock, health);
  return {
    ...server,
    api,
    [Symbol.asyncDispose]() {
      descriptors[Symbol.dispose]();
      return server[Symbol.asyncDispose]();
    },
    async reload() {
      try {
        warn(await reload());
      } catch (error) {
        logger.error(`token reload failed: ${messageOf(error)}`);
      }
    },
  };
}
