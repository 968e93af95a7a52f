"""The commands of `brim arc`: describe data sets, operations and engines, play random actions, measure the speed."""
