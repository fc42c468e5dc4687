"""Condition types and every reason the operator can give. The one place where these words are kept."""

from enum import StrEnum


class ConditionType(StrEnum):
    """All are positive: True is the good state, so that GitOps tools can wait for each of them."""

    ACCEPTED = "Accepted"
    """The declaration is complete and fits its GPUs."""
    SCHEDULED = "Scheduled"
    """Every pod has a node and every slot a GPU."""
    SHARING_READY = "SharingReady"
    """The way of sharing that was asked for is in force on every shared GPU."""
    STAGES_READY = "StagesReady"
    """Every stage of every replica is ready."""
    READY = "Ready"
    """The endpoint serves this generation on every replica."""


class Reason(StrEnum):
    """Why a condition has its status, and why a layout is refused."""

    # The good states.
    ACCEPTED = "Accepted"
    SCHEDULED = "Scheduled"
    SHARING_READY = "SharingReady"
    STAGES_READY = "StagesReady"
    READY = "Ready"
    SCALED_TO_ZERO = "ScaledToZero"

    # On the way.
    STARTING = "Starting"
    PROGRESSING = "Progressing"
    WAITING_FOR_TURN = "WaitingForTurn"
    WAITING_FOR_GPU = "WaitingForGpu"
    STAGE_NOT_READY = "StageNotReady"
    FRONT_NOT_READY = "FrontNotReady"
    REPLACING = "Replacing"
    TERMINATING = "Terminating"

    # The declaration is wrong.
    INVALID_SPEC = "InvalidSpec"
    NAME_TOO_LONG = "NameTooLong"
    UNKNOWN_PIPELINE = "UnknownPipeline"
    UNKNOWN_VARIANT = "UnknownVariant"
    UNKNOWN_STAGE = "UnknownStage"
    UNKNOWN_CARD = "UnknownCard"
    CARD_MISSING = "CardMissing"
    SLOT_SKIPPED = "SlotSkipped"
    DEVICE_COUNT_MISMATCH = "DeviceCountMismatch"
    PROCESS_SPLIT = "ProcessSplit"
    NAMES_COLLIDE = "NamesCollide"
    FIELD_RESERVED = "FieldReserved"
    VARIABLE_RESERVED = "VariableReserved"
    MOUNT_RESERVED = "MountReserved"
    CLAIM_NOT_SHARED = "ClaimNotShared"
    GPU_DOUBLE_BOOKED = "GpuDoubleBooked"
    MPS_USERS_DIFFER = "MpsUsersDiffer"

    # The declaration does not fit.
    BUDGET_MISSING = "BudgetMissing"
    BUDGET_EXCEEDED = "BudgetExceeded"
    BUDGET_INVALID = "BudgetInvalid"
    BUDGET_UNKNOWN = "BudgetUnknown"
    KV_CACHE_EXCEEDED = "KVCacheExceeded"
    LAYOUT_UNSUPPORTED = "LayoutUnsupported"
    SHARING_UNSUPPORTED = "SharingUnsupported"
    TOO_MANY_CLIENTS = "TooManyClients"
    TOO_MANY_SLOTS = "TooManySlots"
    SHARED_REQUEST_LIMIT = "SharedRequestLimit"

    # It fits, but.
    NO_HEADROOM = "NoHeadroom"
    CARD_SIZE_SUSPECT = "CardSizeSuspect"
    SHARE_NOT_ENFORCED = "ShareNotEnforced"
    BUDGET_TIGHT = "BudgetTight"
    COPIES_UNCAPPED = "CopiesUncapped"
    MPS_USER_NOT_SERVED = "MpsUserNotServed"

    # The cluster says no.
    NAME_TAKEN = "NameTaken"
    WRITE_REFUSED = "WriteRefused"
    WRITE_FAILED = "WriteFailed"
    CONTESTED = "Contested"
    RESOURCE_NOT_ADVERTISED = "ResourceNotAdvertised"
    MPS_UNAVAILABLE = "MpsUnavailable"
    MPS_NOT_ATTACHED = "MpsNotAttached"
    TIME_SLICING_UNAVAILABLE = "TimeSlicingUnavailable"
    UNSCHEDULABLE = "Unschedulable"
    STAGE_START_TIMEOUT = "StageStartTimeout"
    STAGE_FAILED = "StageFailed"
    OUT_OF_BUDGET = "OutOfBudget"
    BAD_CONFIG = "BadConfig"
    GPU_FAULT = "GpuFault"


ON_THE_WAY = frozenset(
    {
        Reason.STARTING,
        Reason.PROGRESSING,
        Reason.WAITING_FOR_TURN,
        Reason.WAITING_FOR_GPU,
        Reason.STAGE_NOT_READY,
        Reason.FRONT_NOT_READY,
        Reason.REPLACING,
        Reason.TERMINATING,
        Reason.SCALED_TO_ZERO,
    }
)
"""Reasons of not being ready with which nothing is wrong."""
