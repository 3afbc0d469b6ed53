export {
  LOCATE_SUBJECT,
  type LocateOptions,
  LocateService,
  type LocateStats,
} from "./locate-service.ts";
