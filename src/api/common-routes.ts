import { openapi } from "@elysiajs/openapi";
import { Elysia, t, type ValidationError } from "elysia";
import { assert, HearthError } from "../core/index.ts";
import type { HealthProblem } from "../observability/index.ts";
import type { Access } from "./authorization.ts";
import { answerJson } from "./body.ts";
import { completeDescription, type Description } from "./description.ts";
import { problemOf, refuse } from "./problem.ts";
import { pathOf, type RouteRules, serves } from "./route-rules.ts";
import type { HealthServices } from "./services.ts";

/** Fixed version of the script that the page at /openapi loads from the network. */
const SCALAR_VERSION = "1.72.1";

const DESCRIPTION_PATH = "/openapi/json";

const readiness = t.Object({
  ready: t.Boolean(),
  reasons: t.Array(t.String({ examples: ["the agent is draining"] }), {
    description: "Reasons, one line each",
  }),
});

/** The framework's list of routes. */
export type RouteList = readonly { readonly method: string; readonly path: string }[];

export function everyRouteHasRole(routes: RouteList, { roles }: RouteRules): void {
  for (const { method, path } of routes) {
    assert(Object.hasOwn(roles, `${method} ${path}`), "every route has a role");
  }
}

/** An error that the framework passes to its error handler, reduced to the fields used here. */
interface Thrown {
  readonly code: number | string;
  readonly error: unknown;
  readonly path: string;
  readonly request: Request;
}

export interface Answering {
  readonly routes: RouteList;
  readonly rules: RouteRules;
  readonly onFault: (path: string, thrown: unknown) => void;
}

/** Converts any error to an HTTP response. */
export function answerOf({ code, error, path, request }: Thrown, answering: Answering): Response {
  if (code === "NOT_FOUND") return notFound(answering, request.method, path);
  if (code === "PARSE")
    return refuse("REQUEST_INVALID", "the body does not match its content type");
  const invalid = code === "VALIDATION" ? (error as ValidationError) : null;
  if (invalid !== null && invalid.type !== "response") {
    return refuse("REQUEST_INVALID", whatIsWrong(invalid, request.url));
  }
  const fault = invalid === null ? error : misshapen(invalid);
  answering.onFault(path, fault);
  return problemOf(fault);
}

export function healthRoutes(services: HealthServices) {
  return new Elysia()
    .get("/healthz", () => healthText(services.health()), {
      response: t.String({ examples: ["ok\n", "ok\nwarn KV_SSD_FULL: the SSD is full\n"] }),
      detail: {
        summary: "The process is alive; further lines list the codes of its problems",
        security: [],
      },
    })
    .get(
      "/readyz",
      ({ status }) => {
        const { ready, reasons } = services.readiness();
        return status(ready ? 200 : 503, { ready, reasons: [...reasons] });
      },
      {
        response: {
          200: t.Object(readiness.properties, { examples: [{ ready: true, reasons: [] }] }),
          503: readiness,
        },
        detail: {
          summary: "Whether engines are served now, with the reasons if not",
          security: [],
        },
      },
    )
    .get(
      "/metrics",
      async ({ set }) => {
        set.headers["content-type"] = services.metricsContentType;
        return services.metricsText();
      },
      {
        response: t.String({ examples: ['cgn_kvcached_blocks{tier="ram"} 6400\n'] }),
        detail: { summary: "Metrics in the Prometheus text format" },
      },
    );
}

type Handler = { handle(request: Request): Response | Promise<Response> };

/**
 * Handles a request and completes the OpenAPI description, because the framework omits
 * authorization and errors from it.
 */
export async function handled(
  app: Handler,
  request: Request,
  { access, rules }: { readonly access: Access; readonly rules: RouteRules },
): Promise<Response> {
  const answer = await app.handle(request);
  const isDescription = answer.ok && request.method === "GET";
  if (!isDescription || pathOf(request.url) !== DESCRIPTION_PATH) return answer;
  return answerJson(completeDescription((await answer.json()) as Description, access, rules));
}

/** Returns the health codes without details, because this route requires no token. */
function healthText(problems: readonly HealthProblem[]): string {
  const lines = problems.map(({ code, severity, meaning }) => `${severity} ${code}: ${meaning}\n`);
  return `ok\n${lines.join("")}`;
}

export function documentation(title: string, version: string) {
  return openapi({
    scalar: { version: SCALAR_VERSION },
    documentation: {
      info: {
        title,
        version,
        description:
          "Errors are application/problem+json with a stable `code` and, often, a `fix`. " +
          "Integers of 64 bits are read and written digit for digit.",
      },
    },
  });
}

/** Returns the error for a service's value that does not match the response schema. */
function misshapen(cause: Error): HearthError {
  return new HearthError("INTERNAL", "the answer does not match its schema", { cause });
}

/** Returns a 405 response if the path exists for another method, else a 404 response. */
function notFound({ routes, rules }: Answering, method: string, path: string): Response {
  const methods = routes.filter((route) => serves(route.path, path)).map((route) => route.method);
  if (methods.length === 0) {
    return refuse("NOT_FOUND", `unknown path ${path.slice(0, 200)}`, { fix: "see /openapi" });
  }
  const hasHead = methods.includes("GET") && !rules.changes("HEAD", path);
  const allow = hasHead ? [...methods, "HEAD"] : methods;
  return refuse("METHOD_NOT_ALLOWED", `${path} does not support ${method}`, {
    headers: { allow: [...new Set(allow)].join(", ") },
  });
}

/** The parts of the framework's validation error that are used here. */
type Invalid = Pick<ValidationError, "type" | "valueError">;

interface Wanted {
  readonly minimum?: number;
  readonly maximum?: number;
  readonly anyOf?: readonly { readonly const?: unknown }[];
}

const PATH_CHARACTERS_MAX = 100;

/**
 * Describes the first invalid value in one line. The framework's own message repeats the whole
 * request.
 */
function whatIsWrong({ type, valueError }: Invalid, url: string): string {
  const { path = "", message = "invalid value", schema, value } = valueError ?? {};
  const where = type === "property" ? "query" : type;
  const names = path === "" ? namesOf(url, value) : [path.slice(1, PATH_CHARACTERS_MAX)];
  const expected = schema === undefined ? null : expectationOf(schema as Wanted);
  if (names.length > 0 && expected !== null)
    return `${where}: ${names.join(" or ")} is ${expected}`;
  return `${where}${path.slice(0, PATH_CHARACTERS_MAX)}: ${message}`;
}

/**
 * Returns the names of the query parameters with this value. For a value out of range, the
 * framework does not name the parameter.
 */
function namesOf(url: string, value: unknown): string[] {
  const parameters = URL.parse(url)?.searchParams ?? new URLSearchParams();
  const isIt = (text: string) => text !== "" && Number(text) === value;
  return [...parameters].flatMap(([name, text]) =>
    isIt(text) ? [name.slice(0, PATH_CHARACTERS_MAX)] : [],
  );
}

/** Describes the allowed values. Null if the framework's message is clear enough. */
function expectationOf({ minimum, maximum, anyOf = [] }: Wanted): string | null {
  if (minimum !== undefined) {
    const to = maximum === undefined ? "on" : `to ${maximum}`;
    return `an integer from ${minimum} ${to}`;
  }
  const choices = anyOf.map((one) => one.const).filter((one) => one !== undefined);
  return choices.length === 0 ? null : `one of ${choices.join(", ")}`;
}
