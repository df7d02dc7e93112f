"""`tf.contrib.training`: hyperparameters. Its training and evaluation loops are in tf-slim."""

from __future__ import annotations

import json
import numbers
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["HParams", "parse_values"]

# name=value, name[index]=value or name=[value,value], and the comma before the next.
_ASSIGNMENT = re.compile(
    r"(?P<name>[a-zA-Z][\w.]*)(?:\[\s*(?P<index>\d+)\s*\])?\s*=\s*"
    r"(?:\[(?P<list>[^\]]*)\]|(?P<value>[^,\[]*))(?:$|,\s*)"
)


def parse_values(values: str, type_map: Mapping[str, type], ignore_unknown: bool = False) -> dict[str, Any]:
    """Parse `"name=value,list=[1,2],list[0]=3"`.

    Args:
        values: The text.
        type_map: Name -> type of its value, or of the elements of its list.
        ignore_unknown: Whether to ignore names that are not in `type_map`; otherwise they are an error.

    Returns:
        Name -> value, list of values, or a dictionary index -> value.

    Raises:
        ValueError: The text is malformed, a name is unknown or repeated, or a value has a wrong type.
    """
    parsed: dict[str, Any] = {}
    at = 0
    while at < len(values):
        match = _ASSIGNMENT.match(values, at)
        if match is None:
            raise ValueError(f"Malformed hyperparameter value: {values[at:]}")
        at = match.end()
        name = match["name"]
        if name not in type_map:
            if ignore_unknown:
                continue
            raise ValueError(f"Unknown hyperparameter type for {name}")
        read = _reader(name, type_map[name], values)
        if match["list"] is not None:
            if match["index"] is not None:
                raise ValueError("Assignment of a list to a list index.")
            _once(name not in parsed, name, values)
            parsed[name] = [read(each) for each in re.split("[ ,]", match["list"]) if each]
        elif match["index"] is not None:
            _once(isinstance(parsed.setdefault(name, {}), dict), name, values)
            index = int(match["index"])
            _once(index not in parsed[name], f"{name}[{index}]", values)
            parsed[name][index] = read(match["value"])
        else:
            _once(name not in parsed, name, values)
            parsed[name] = read(match["value"])
    return parsed


def _once(holds: bool, name: str, values: str) -> None:
    if not holds:
        raise ValueError(f"Multiple assignments to variable '{name}' in {values}")


def _reader(name: str, kind: type, values: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            if kind is bool:
                return text in ("true", "True") or (text not in ("false", "False") and bool(int(text)))
            return kind(text)
        except ValueError:
            raise ValueError(
                f"Could not parse hparam '{name}' of type '{kind.__name__}' with value '{text}' in {values}"
            ) from None

    return read


def _cast(name: str, kind: type, value: Any) -> Any:
    """Convert a value to the hyperparameter's type, if that is lossless."""
    if type(value) is kind or kind is type(None):
        return value
    fits = (
        (not issubclass(kind, (str, bytes)) or isinstance(value, (str, bytes)))
        and issubclass(kind, bool) == isinstance(value, bool)
        and (not issubclass(kind, numbers.Integral) or isinstance(value, numbers.Integral))
        and (not issubclass(kind, numbers.Number) or isinstance(value, numbers.Number))
    )
    if not fits:
        raise ValueError(f"Could not cast hparam '{name}' of type '{kind}' from value {value!r}")
    return kind(value)


class HParams:
    """Named hyperparameters as attributes, with the types of their first values.

    Args:
        hparam_def: Not supported: its protocol buffer was removed.
        model_structure: The result of `get_model_structure`.
        **kwargs: Name -> value: a number, a bool, a string, None, or a list of values of the same type.

    Raises:
        ValueError: A list is empty, or a name is reserved.
    """

    _HAS_DYNAMIC_ATTRIBUTES = True  # for pytype

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **kwargs: Any) -> None:
        if hparam_def is not None:
            raise ValueError(
                "HParams(hparam_def=...): its protocol buffer was removed with tf.contrib; pass the values by name"
            )
        self._hparam_types: dict[str, tuple[type, bool]] = {}
        self._model_structure = model_structure
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Add a hyperparameter.

        Raises:
            ValueError: The name is in use, or the value is an empty list.
        """
        if getattr(self, name, None) is not None:
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        if isinstance(value, (list, tuple)):
            if not value:
                raise ValueError(f"Multi-valued hyperparameters cannot be empty: {name}")
            self._hparam_types[name] = (type(value[0]), True)
        else:
            self._hparam_types[name] = (type(value), False)
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        """Set a hyperparameter to a different value of its type.

        Raises:
            KeyError: There is no such hyperparameter.
            ValueError: The value has a different type.
        """
        kind, is_list = self._hparam_types[name]
        if isinstance(value, list) != is_list:
            raise ValueError(
                f"Must pass a list for multi-valued parameter: {name}."
                if is_list
                else f"Must not pass a list for single-valued parameter: {name}"
            )
        setattr(self, name, [_cast(name, kind, each) for each in value] if is_list else _cast(name, kind, value))

    def del_hparam(self, name: str) -> None:
        """Remove a hyperparameter, if it exists."""
        if hasattr(self, name):
            delattr(self, name)
            del self._hparam_types[name]

    def parse(self, values: str) -> HParams:
        """Override hyperparameters from a text, see `parse_values`, and return self."""
        types = {name: kind for name, (kind, _) in self._hparam_types.items()}
        return self.override_from_dict(parse_values(values, types))

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Override hyperparameters by name -> value, list, or index -> value, and return self."""
        for name, value in values_dict.items():
            if isinstance(value, dict):
                whole = list(getattr(self, name))
                for index, each in value.items():
                    whole[index] = each
                value = whole
            self.set_hparam(name, value)
        return self

    set_from_map = override_from_dict

    def parse_json(self, values_json: str) -> HParams:
        """Override hyperparameters from a JSON object, and return self."""
        return self.override_from_dict(json.loads(values_json))

    def to_json(self, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        """Return all values except functions as a JSON object."""
        values = {name: value for name, value in self.values().items() if not callable(value)}
        return json.dumps(values, indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Any]:
        """Return name -> value."""
        return {name: getattr(self, name) for name in self._hparam_types}

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or `default` if there is no such hyperparameter.

        Raises:
            ValueError: The `default` has a different type.
        """
        if key not in self._hparam_types:
            return default
        if default is not None:
            kind, is_list = self._hparam_types[key]
            try:
                if is_list != isinstance(default, (list, tuple)):
                    raise ValueError("a list and a single value")
                for each in default if is_list else [default]:
                    _cast(key, kind, each)
            except ValueError as error:
                raise ValueError(f"Hparam '{key}' does not match the default {default!r}: {error}") from error
        return getattr(self, key)

    def set_model_structure(self, model_structure: Any) -> None:
        self._model_structure = model_structure

    def get_model_structure(self) -> Any:
        return self._model_structure

    def __contains__(self, key: object) -> bool:
        return key in self._hparam_types

    def __str__(self) -> str:
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        return f"HParams({self})"
