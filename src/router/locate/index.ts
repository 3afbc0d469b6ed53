export {
  LOCATE_SUBJECT,
  type LocateOptions,
  LocateService,
  type LocateStats,
} from "./locate-service.ts";
export { LOCATE_KEYS_MAX, type LocateQuestion, readQuestion } from "./question.ts";
