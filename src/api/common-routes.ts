import { openapi } from "@elysiajs/openapi";
import { Elysia, t, type ValidationError } from "elysia";
import { assert, HearthError } from "../core/index.ts";
import type { HealthProblem } from "../observability/index.ts";
import type { Access } from "./authorization.ts";
import { answerJson } from "./body.ts";
import { completeDescription, type Description, type DescriptionWords } from "./description.ts";
import { problemOf, refuse } from "./problem.ts";
import { pathOf, type RouteRules, serves } from "./route-rules.ts";
import type { Readiness } from "./services.ts";

/**
 * The page at /openapi loads its script from the network; a fixed version, so that it is what it
 * was.
 */
const SCALAR_VERSION = "1.72.1";

const DESCRIPTION_PATH = "/openapi/json";

const readiness = (example: object) =>
  t.Object(
    {
      ready: t.Boolean(),
      reasons: t.Array(t.String(), { description: "Why not, or what is missing; a line each" }),
    },
    { examples: [example] },
  );

/** What is served, as the framework lists it. */
export type RouteList = readonly { readonly method: string; readonly path: string }[];

export function everyRouteHasRole(routes: RouteList, { roles }: RouteRules): void {
  for (const { method, path } of routes) {
    assert(Object.hasOwn(roles, `${method} ${path}`), "every route has its role");
  }
}

/** What the framework throws at a handler of errors, as far as it is looked at. */
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

/** Whatever went wrong, as an answer. */
export function answerOf({ code, error, path, request }: Thrown, answering: Answering): Response {
  if (code === "NOT_FOUND") return notFound(answering, request.method, path);
  if (code === "PARSE") return refuse("REQUEST_INVALID", "the body is not what its type says");
  const invalid = code === "VALIDATION" ? (error as ValidationError) : null;
  if (invalid !== null && invalid.type !== "response") {
    return refuse("REQUEST_INVALID", whatIsWrong(invalid, request.url));
  }
  const fault = invalid === null ? error : misshapen(invalid);
  answering.onFault(path, fault);
  return problemOf(fault);
}

/** What every process of Hearth tells of itself. */
export interface HealthServices {
  readiness(): Readiness;
  /** What is the matter now, the worst first. */
  health(): readonly HealthProblem[];
  metricsText(): Promise<string>;
  /** Content type that belongs to `metricsText`. */
  readonly metricsContentType: string;
}

export function healthRoutes(services: HealthServices) {
  return new Elysia()
    .get("/healthz", () => healthText(services.health()), {
      response: t.String({ examples: ["ok\n", "ok\nwarn KV_SSD_FULL: the SSD is full\n"] }),
      detail: {
        summary: "The process lives and answers; below it the codes of what is the matter",
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
          200: readiness({ ready: true, reasons: [] }),
          503: readiness({ ready: false, reasons: ["the agent is draining"] }),
        },
        detail: { summary: "Whether engines are served now, and if not why", security: [] },
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

export interface Describing {
  readonly access: Access;
  readonly words: DescriptionWords;
}

type Handler = { handle(request: Request): Response | Promise<Response> };

/** The description as the framework makes it knows neither the gate nor what a problem is. */
export async function handled(
  app: Handler,
  request: Request,
  { access, words }: Describing,
): Promise<Response> {
  const answer = await app.handle(request);
  const isDescription = answer.ok && request.method === "GET";
  if (!isDescription || pathOf(request.url) !== DESCRIPTION_PATH) return answer;
  return answerJson(completeDescription((await answer.json()) as Description, access, words));
}

/** No details: whoever asks need not have shown a token. */
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

/** A service gave something else than its schema promises. */
function misshapen(cause: Error): HearthError {
  return new HearthError("INTERNAL", "the answer is not what its schema promises", { cause });
}

/** 405 where the path is served for another method, else 404. */
function notFound({ routes, rules }: Answering, method: string, path: string): Response {
  const methods = routes.filter((route) => serves(route.path, path)).map((route) => route.method);
  if (methods.length === 0) {
    return refuse("NOT_FOUND", `there is no ${path.slice(0, 200)}`, { fix: "see /openapi" });
  }
  const hasHead = methods.includes("GET") && !rules.changes("HEAD", path);
  const allow = hasHead ? [...methods, "HEAD"] : methods;
  return refuse("METHOD_NOT_ALLOWED", `${path} does not answer ${method}`, {
    headers: { allow: [...new Set(allow)].join(", ") },
  });
}

/** Of the framework's error no more than is looked at here. */
type Invalid = Pick<ValidationError, "type" | "valueError">;

interface Wanted {
  readonly minimum?: number;
  readonly maximum?: number;
  readonly anyOf?: readonly { readonly const?: unknown }[];
}

const PATH_CHARACTERS_MAX = 100;

/** The first thing, in a line: the framework's own words repeat the whole request. */
function whatIsWrong({ type, valueError }: Invalid, url: string): string {
  const { path = "", message = "not what it should be", schema, value } = valueError ?? {};
  const where = type === "property" ? "query" : type;
  const names = path === "" ? namesOf(url, value) : [path.slice(1, PATH_CHARACTERS_MAX)];
  const words = schema === undefined ? null : wordsOf(schema as Wanted);
  if (names.length > 0 && words !== null) return `${where}: ${names.join(" or ")} is ${words}`;
  return `${where}${path.slice(0, PATH_CHARACTERS_MAX)}: ${message}`;
}

/** What is out of range comes without its name: members of the query with this number. */
function namesOf(url: string, value: unknown): string[] {
  const members = URL.parse(url)?.searchParams ?? new URLSearchParams();
  const isIt = (text: string) => text !== "" && Number(text) === value;
  return [...members].flatMap(([name, text]) =>
    isIt(text) ? [name.slice(0, PATH_CHARACTERS_MAX)] : [],
  );
}

/** Null: the framework's own words are as good. */
function wordsOf({ minimum, maximum, anyOf = [] }: Wanted): string | null {
  if (minimum !== undefined) {
    const to = maximum === undefined ? "on" : `to ${maximum}`;
    return `a whole number from ${minimum} ${to}`;
  }
  const choices = anyOf.map((one) => one.const).filter((one) => one !== undefined);
  return choices.length === 0 ? null : `one of ${choices.join(", ")}`;
}
